"""Conditions of a machine that only its own kernel can have: swap, modules, a full disk, a wrong clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from tests.agents import differences, facts, flex, prepare
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

pytestmark = pytest.mark.vm

MODULES = ("overlay", "br_netfilter")
CONFIG = ("--config", "/etc/aks-flex-node/config.json")


@pytest.fixture(scope="module")
def shared(lab: Lab) -> Iterator[EdgeMachine]:
    """Yields a machine with the agent. Each test restores it."""
    with lab.exclusive():
        machine = lab.inventory.add_virtual("vm-conditions", DebianRelease.BOOKWORM, "site-1")
    prepare(lab, machine)
    yield machine
    with lab.exclusive():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")


def loaded(machine: EdgeMachine) -> set[str]:
    return {line.split()[0] for line in machine.run("cat", "/proc/modules").out.splitlines()}


def swaps(machine: EdgeMachine) -> list[str]:
    return machine.run("swapon", "--show=NAME", "--noheadings").out.split()


def test_modules_are_loaded_at_every_boot_until_unbootstrap(shared: EdgeMachine) -> None:
    assert not set(MODULES) & loaded(shared)
    before = shared.snapshot()

    flex(shared, "bootstrap", "--only", "system")
    assert set(MODULES) <= loaded(shared)
    assert swaps(shared) == []

    shared.reboot()
    assert set(MODULES) <= loaded(shared)
    assert swaps(shared) == []

    flex(shared, "unbootstrap", "--yes")
    assert swaps(shared) == ["/swapfile"]
    shared.reboot()
    assert not set(MODULES) & loaded(shared)
    assert swaps(shared) == ["/swapfile"]
    assert differences(before, shared) == []


def test_kernel_without_needed_module_is_refused_before_any_change(shared: EdgeMachine) -> None:
    script = "cd /lib/modules/$(uname -r) && find . -name 'br_netfilter.ko*' -exec mv {} /root/ ';' && depmod"
    where = shared.run("sh", "-c", "modinfo -n br_netfilter").out.strip()
    shared.run("sh", "-c", script)
    before = shared.snapshot()
    try:
        refused = flex(shared, "agent", *CONFIG, check=False)

        assert refused.code == 4, refused.err
        assert "br_netfilter" in refused.err
        assert differences(before, shared) == []
    finally:
        shared.run("sh", "-c", f"mv /root/br_netfilter.ko* {where} && depmod")


def test_join_on_a_full_disk_is_refused_and_works_after_it_is_freed(lab: Lab, shared: EdgeMachine) -> None:
    before = shared.snapshot()
    shared.run("sh", "-c", "fallocate -l $(($(stat -fc '%a*%S' /) - 200*1024*1024)) /root/full; sync")

    refused = flex(shared, "agent", *CONFIG, check=False)

    assert refused.code == 4, refused.err
    assert "disk" in refused.err.lower()
    shared.run("rm", "/root/full")
    assert differences(before, shared) == []


def test_disk_that_fills_up_during_a_join_leaves_a_machine_that_joins(lab: Lab, shared: EdgeMachine) -> None:
    """A download is interrupted by a disk without space, and the next attempt completes the join."""
    before = shared.snapshot()
    shared.run("sh", "-c", "fallocate -l $(($(stat -fc '%a*%S' /) - 300*1024*1024)) /root/full; sync")
    refused = flex(shared, "agent", *CONFIG, "--skip-preflight", "disk", check=False)
    assert refused.code != 0, refused.err
    shared.run("rm", "/root/full")

    flex(shared, "agent", *CONFIG)
    assert facts(shared, "verify") == {"clean": True, "differences": []}
    flex(shared, "unbootstrap", "--yes")
    shared.reboot()
    assert differences(before, shared) == []


@pytest.mark.parametrize("change", ["-1 day", "+1 day", "-10 years", "+10 years"])
def test_node_with_wrong_clock_recovers_when_it_is_corrected(lab: Lab, shared: EdgeMachine, change: str) -> None:
    flex(shared, "agent", *CONFIG)

    shared.run("sh", "-c", f'date --set "$(date --date "{change}")"')
    shared.run("systemctl", "restart", "kubelet")
    shared.run("sh", "-c", "hwclock --hctosys --utc || true")
    shared.run("systemctl", "restart", "kubelet")

    until(lambda: lab.cluster.node_ready(shared.name), "the node is Ready with the right time")
    assert facts(shared, "verify") == {"clean": True, "differences": []}
