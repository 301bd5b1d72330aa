"""A managed node on a virtual machine: CIS benchmark, a disk that is really full, and a clock that is wrong."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cis_worker import Outcome, numbers, run_controls
from tests.vm.machines import managed_virtual_node
from tests.wait import until_slow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import ManagedLabNode
    from tests.vm.conftest import Figures

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2 * 3600)]

FILLER = "/filler"
# Blocks that are only allocated cost no time; the rest is written in ever smaller pieces.
FILL_SCRIPT = f"""
fallocate --length "$(df --output=avail --block-size=1 / | tail -1)" {FILLER}
for size in 1M 4k 512; do dd if=/dev/zero bs=$size oflag=append conv=notrunc of={FILLER}; done
sync
"""
DAY = 24 * 3600
TEN_YEARS = 3652 * DAY
CLOCK_SHIFT_SECONDS = 90  # in which an emulated machine polls several times


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[ManagedLabNode]:
    """Yields one node for all tests of this file; each restores it."""
    with managed_virtual_node(lab, "vm-managed") as node:
        node.join()
        yield node


def test_node_passes_the_worker_controls_of_cis(lab: Lab, node: ManagedLabNode, figures: Figures) -> None:
    found = run_controls(lab, node.machine)

    for outcome in Outcome:
        figures.record("CIS 1.12, worker", outcome.value, len(numbers(found, outcome)))
    assert numbers(found, Outcome.FAIL) == []
    assert numbers(found, Outcome.NOT_APPLICABLE) == ["4.1.3", "4.1.4", "4.3.1"]


def test_node_with_full_disk_changes_nothing_and_continues(lab: Lab, node: ManagedLabNode) -> None:
    machine, before = node.machine, node.applied()
    machine.run("sh", "-c", FILL_SCRIPT, check=False, timeout=600)
    try:
        assert is_full(machine)
        version = node.update(nodeConfig={"maxPods": 51})
        until_slow(lambda: "disk is full" in applied_message(node), "the full disk is reported")
        assert node.applied() == before
        machine.power_cycle()
        assert is_full(machine)
        seen = last_seen(node)
        until_slow(lambda: last_seen(node) > seen, "the agent reports after a boot with a full disk")
        until_slow(lambda: active(machine), "all services run after a boot with a full disk")
    finally:
        machine.run("sh", "-c", f"rm -f {FILLER} /root/file; sync")
    node.wait_until_applied(version)
    until_slow(lambda: converged(lab, node), "the node has its desired state")


@pytest.mark.parametrize("seconds", [DAY, -DAY, TEN_YEARS, -TEN_YEARS])
def test_node_with_wrong_clock_stays_a_node(lab: Lab, node: ManagedLabNode, seconds: int) -> None:
    machine = node.machine
    identity = machine.run("sha256sum", "/var/lib/kubelet/kubeconfig", "/etc/kubernetes/certs/ca.crt").out
    with shifted_clock(machine, seconds):
        time.sleep(CLOCK_SHIFT_SECONDS)
        assert active(machine)
    assert machine.run("sha256sum", "/var/lib/kubelet/kubeconfig", "/etc/kubernetes/certs/ca.crt").out == identity

    version = int(node.update(nodeConfig={"maxPods": 60 + (seconds > 0)}))
    # After years, the node also renews its key, which makes a newer version.
    until_slow(
        lambda: int(node.applied() or 0) >= version, "the node applies a configuration after the clock is right"
    )
    until_slow(lambda: converged(lab, node), "the node has its desired state after the clock is right")


@contextmanager
def shifted_clock(machine: EdgeMachine, seconds: int) -> Iterator[None]:
    """Sets the clock of a machine to a wrong time for the block."""
    machine.run("date", "--set", f"@{time.time() + seconds:.0f}")
    try:
        yield
    finally:
        machine.run("date", "--set", f"@{time.time():.0f}")


def active(machine: EdgeMachine) -> bool:
    services = ("aks-flex-node", "kubelet", "containerd")
    return machine.run("systemctl", "is-active", *services, check=False).out.split() == ["active"] * len(services)


def is_full(machine: EdgeMachine) -> bool:
    return not machine.run("sh", "-c", "echo text >/root/file", check=False).ok


def last_seen(node: ManagedLabNode) -> str:
    return str(node.provider.get(node.name)["lastSeen"])


def applied_message(node: ManagedLabNode) -> str:
    return node.condition("ConfigApplied").get("message", "")


def converged(lab: Lab, node: ManagedLabNode) -> bool:
    return lab.cluster.node_ready(node.name) and node.is_clean()
