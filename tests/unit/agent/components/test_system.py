"""Tests of kernel settings, and of /etc/fstab, which belongs to the system."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.components import system
from aks_flex_node.agent.components.system import SYSCTLS, with_swap, without_swap
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.resources import KernelModule, NoSwap, Spec, Sysctl
from aks_flex_node.host.actions import EditFile, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import desired, text_of

OFF = "#aks-flex-node# "
LINES = [
    ("/dev/sda2 none swap sw 0 0", True),
    ("/dev/sda2\tnone\tswap\tsw\t0\t0", True),
    ("UUID=1234-5678   none    swap    sw,pri=5    0 0", True),
    ("/swap.img swap swap defaults 0 0", True),
    ("  /swap.img none swap sw 0 0", True),
    ("/swap.img none swap", True),
    ("# /dev/sda2 none swap sw 0 0", False),
    ("#/dev/sda2 none swap sw 0 0", False),
    (f"{OFF}/dev/sda2 none swap sw 0 0", False),
    ("/dev/sda1 /swap ext4 defaults 0 1", False),
    ("/dev/sda1 / swapfs defaults 0 1", False),
    ("/dev/sda1 /", False),
    ("", False),
]


@pytest.mark.parametrize(("line", "swaps"), LINES)
def test_only_swap_lines_of_fstab_are_commented_out(line: str, swaps: bool) -> None:
    assert without_swap(line.encode()).decode() == (f"{OFF}{line}" if swaps else line)


def test_fstab_edit_is_idempotent_and_reversible() -> None:
    table = "\n".join(line for line, _ in LINES if not line.startswith(OFF)).encode() + b"\nswap last swap x\n"
    edited = without_swap(table)
    assert edited.count(OFF.encode()) == 7
    assert without_swap(edited) == edited
    assert with_swap(edited) == table


def test_fstab_restore_keeps_our_marker_inside_foreign_comments() -> None:
    assert with_swap(b"# see #aks-flex-node# for more\n") == b"# see #aks-flex-node# for more\n"


def test_fstab_fields_are_not_read_across_lines() -> None:
    table = b"/dev/sda1 /\nswap x ext4 defaults 0 0\n"
    assert without_swap(table) == table


def test_fstab_edit_keeps_its_mode_and_is_reverted_on_removal() -> None:
    host = RecordedHost({"/etc/fstab": ""})
    host.apply(WriteFile("/etc/fstab", b"/swap none swap sw 0 0\n", 0o600))
    spec = Spec()
    (edit,) = system.plan(spec, system.observe(host, spec, OwnedResources()))
    assert edit == EditFile("/etc/fstab", f"{OFF}/swap none swap sw 0 0\n".encode(), 0o600)
    host.apply(edit)
    assert list(system.plan(spec, system.observe(host, spec, OwnedResources()))) == []
    (back,) = system.removal(system.observe(host, Spec(), OwnedResources()))
    assert back == EditFile("/etc/fstab", b"/swap none swap sw 0 0\n", 0o600)


def test_missing_fstab_is_not_created() -> None:
    host = RecordedHost()
    assert list(system.plan(Spec(), system.observe(host, Spec(), OwnedResources()))) == []
    assert list(system.removal(system.observe(host, Spec(), OwnedResources()))) == []


def test_sysctls_and_modules_are_set_now_and_at_boot() -> None:
    spec = desired(system)
    at_boot = text_of(spec, "/etc/sysctl.d/99-zz-aks-flex-node.conf").splitlines()[1:]
    assert at_boot == [f"{key} = {value}" for key, value in SYSCTLS.items()]
    assert {one.key: one.value for one in spec.resources if isinstance(one, Sysctl)} == SYSCTLS
    assert text_of(spec, "/etc/modules-load.d/aks-flex-node.conf").splitlines()[1:] == ["overlay", "br_netfilter"]


def test_kernel_module_is_loaded_before_its_sysctls() -> None:
    resources = desired(system).resources
    assert resources.index(KernelModule("br_netfilter")) < resources.index(
        Sysctl("net.bridge.bridge-nf-call-iptables", "1")
    )
    assert resources[-1] == NoSwap()
