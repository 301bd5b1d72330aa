"""The kernel's settings, and the table of file systems that belongs to somebody else."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.components import system
from aks_flex_node.agent.components.system import SYSCTLS, with_swap, without_swap
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.agent.reconcile.resources import KernelModule, NoSwap, Spec, Sysctl
from aks_flex_node.host.actions import EditFile, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import MACHINE, config_of, text_of

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
def test_a_line_that_swaps_is_taken_out_of_effect_and_no_other(line: str, swaps: bool) -> None:
    assert without_swap(line.encode()).decode() == (f"{OFF}{line}" if swaps else line)


def test_a_table_comes_back_as_it_was_and_is_edited_once() -> None:
    table = "\n".join(line for line, _ in LINES if not line.startswith(OFF)).encode() + b"\nswap last swap x\n"
    edited = without_swap(table)
    assert edited.count(OFF.encode()) == 7
    assert without_swap(edited) == edited
    assert with_swap(edited) == table


def test_words_of_ours_inside_a_line_of_somebody_else_stay() -> None:
    assert with_swap(b"# see #aks-flex-node# for more\n") == b"# see #aks-flex-node# for more\n"


def test_a_field_on_the_next_line_does_not_make_a_line_that_swaps() -> None:
    table = b"/dev/sda1 /\nswap x ext4 defaults 0 0\n"
    assert without_swap(table) == table


def test_the_table_is_edited_with_its_own_mode_and_given_back() -> None:
    host = RecordedHost({"/etc/fstab": ""})
    host.apply(WriteFile("/etc/fstab", b"/swap none swap sw 0 0\n", 0o600))
    spec = Spec()
    (edit,) = system.plan(spec, system.observe(host, spec, OwnedResources()))
    assert edit == EditFile("/etc/fstab", f"{OFF}/swap none swap sw 0 0\n".encode(), 0o600)
    host.apply(edit)
    assert list(system.plan(spec, system.observe(host, spec, OwnedResources()))) == []
    (back,) = system.removal(system.observe(host, Spec(), OwnedResources()))
    assert back == EditFile("/etc/fstab", b"/swap none swap sw 0 0\n", 0o600)


def test_a_machine_without_a_table_gets_none() -> None:
    host = RecordedHost()
    assert list(system.plan(Spec(), system.observe(host, Spec(), OwnedResources()))) == []
    assert list(system.removal(system.observe(host, Spec(), OwnedResources()))) == []


def test_settings_hold_now_and_after_a_boot() -> None:
    spec = system.desired(config_of(), MACHINE)
    at_boot = text_of(spec, "/etc/sysctl.d/99-zz-aks-flex-node.conf").splitlines()[1:]
    assert at_boot == [f"{key} = {value}" for key, value in SYSCTLS.items()]
    assert {one.key: one.value for one in spec.resources if isinstance(one, Sysctl)} == SYSCTLS
    assert text_of(spec, "/etc/modules-load.d/aks-flex-node.conf").splitlines()[1:] == ["overlay", "br_netfilter"]


def test_the_module_comes_before_the_settings_that_it_brings() -> None:
    resources = system.desired(config_of(), MACHINE).resources
    assert resources.index(KernelModule("br_netfilter")) < resources.index(
        Sysctl("net.bridge.bridge-nf-call-iptables", "1")
    )
    assert resources[-1] == NoSwap()


def test_a_kubelet_that_protects_the_kernel_finds_what_it_asks_for() -> None:
    asked = {"vm.overcommit_memory": "1", "vm.panic_on_oom": "0", "kernel.panic": "10", "kernel.panic_on_oops": "1",
             "kernel.keys.root_maxkeys": "1000000", "kernel.keys.root_maxbytes": "25000000"}  # fmt: skip
    assert asked.items() <= SYSCTLS.items()
