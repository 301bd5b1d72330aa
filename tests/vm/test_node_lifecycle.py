"""Life of a managed node on a virtual machine: cgroup v2, AppArmor, swap, and a disk that loses unflushed writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.machines.base_system import DebianRelease
from tests.vm.node_lifecycle import OLDER, NodeLifecycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from tests.managed_node import ManagedLabNode
    from tests.vm.conftest import Figures

pytestmark = pytest.mark.timeout(2 * 3600)

HOST = Architecture.of_host()
[FOREIGN] = [arch for arch in Architecture if arch is not HOST]  # is always emulated
MACHINES = [(DebianRelease.BOOKWORM, HOST), (DebianRelease.TRIXIE, HOST), (DebianRelease.BOOKWORM, FOREIGN)]


@pytest.fixture
def begin(
    lab: Lab, add_virtual_node: Callable[..., ManagedLabNode], figures: Figures
) -> Callable[..., NodeLifecycle]:
    """Returns a function that creates a machine with the agent, which has not joined."""

    def make(system: DebianRelease, arch: Architecture, **properties: object) -> NodeLifecycle:
        run = f"{system.value} {arch.value}"
        with figures.phase(run, "create a machine, boot it, install the agent"):
            node = add_virtual_node(f"vm-{system.value}-{arch.value}", system, arch, **properties)
        figures.record(run, "accelerator", node.machine.record.accelerator)
        return NodeLifecycle(lab, node, figures, run, node.machine.snapshot())

    return make


def test_node_survives_power_loss_and_unbootstraps(begin: Callable[..., NodeLifecycle]) -> None:
    lifecycle = begin(DebianRelease.BOOKWORM, HOST)
    lifecycle.join()
    lifecycle.update()
    lifecycle.reboot()
    lifecycle.lose_power_in_update()
    lifecycle.unbootstrap()


@pytest.mark.vm
@pytest.mark.parametrize(("system", "arch"), MACHINES, ids=lambda one: one.value)
def test_node_is_repaired_and_upgraded(
    begin: Callable[..., NodeLifecycle], system: DebianRelease, arch: Architecture
) -> None:
    lifecycle = begin(system, arch, versions={"kubernetes": OLDER})
    lifecycle.join()
    lifecycle.update()
    lifecycle.repair_drift()
    lifecycle.upgrade()
    lifecycle.reboot()
    lifecycle.lose_power_in_update()
    lifecycle.unbootstrap()
