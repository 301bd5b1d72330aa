"""Slow events in real time: a tunnel that is down for ten minutes, and delayed role assignments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import network
from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from tests.join_methods import EXEC, by_arc
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

CUT_SECONDS = 600.0
LATE_SECONDS = 90.0


@pytest.mark.timeout(1800)
def test_node_waits_for_late_roles_and_recovers_from_long_vpn_outage(lab: Lab, add_machine: Add) -> None:
    reach = {"vpn": {"enabled": True, "autoProvision": True}, "kubelet": {"serverURL": network.PRIVATE_API_URL}}
    node = ManagedLabNode.make(lab, add_machine("late-1", site="private"), kubernetesAuth=EXEC, nodeConfig=reach)
    late = EventualConsistency(lab.azure.state)
    late.change(assignment_seconds=LATE_SECONDS)
    begun = time.monotonic()
    try:
        node.join(*by_arc(node))
    finally:
        late.change(assignment_seconds=0.0)
    assert time.monotonic() - begun > LATE_SECONDS
    node.wait_until_ready()
    lab.fault_proxy.set_enabled("vpn", on=False)
    try:
        until(lambda: not lab.cluster.node_ready("late-1"), "the cluster does not hear of it any more", 180)
        time.sleep(CUT_SECONDS)
    finally:
        lab.fault_proxy.set_enabled("vpn", on=True)
    until(lambda: lab.cluster.node_ready("late-1"), "the node is back, and nobody touched it", 300)
    until(lambda: node.status()["vpn"]["status"] == "Connected", "so is its tunnel")
    node.delete()
    until(lambda: node.node() is None, "it leaves as any other", 180)
