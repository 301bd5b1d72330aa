"""Conditions of a machine that only its own kernel can have: swap, and kernel modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, flex, prepare
from tests.vm.machines import virtual_machine
from tests.vm.node_lifecycle import swaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

MODULES = ("overlay", "br_netfilter")
CONFIG = ("--config", "/etc/aks-flex-node/config.json")


@pytest.fixture(scope="module")
def shared(lab: Lab) -> Iterator[EdgeMachine]:
    """Yields a machine with the agent. Each test restores it."""
    with virtual_machine(lab, "vm-conditions") as machine:
        prepare(lab, machine)
        yield machine


def loaded(machine: EdgeMachine) -> set[str]:
    return {line.split()[0] for line in machine.run("cat", "/proc/modules").out.splitlines()}


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
