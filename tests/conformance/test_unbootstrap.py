"""A node of a cluster with a network plugin and kube-proxy leaves its machine as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.cluster_network import DAEMON_SETS, NAMESPACE
from tests.agents import differences, flex, prepare
from tests.conformance.suite import bridge
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

TAINT = {"key": "leaving", "value": "soon", "effect": "NoSchedule"}  # no other pods than those of DaemonSets
ROUTE = "10.50.0.0/24"


@pytest.mark.usefixtures("nodes")
def test_unbootstrap_leaves_nothing_of_the_cluster_network(lab: Lab, add_machine: Callable[..., EdgeMachine]) -> None:
    machine = add_machine("leaver")
    prepare(lab, machine, node={"taints": [TAINT]})
    before = machine.snapshot()
    flex(machine, "agent")
    until(lambda: network_runs_on(lab, machine) and not bridge(machine), "the cluster network runs on the node")
    seen = [str(one) for one in machine.differences(before)]
    for trace in ("10-podnet.conflist", "'ip 198.19.", "KUBE-SERVICES", "route_localnet"):
        assert any(trace in each for each in seen), trace
    machine.run("ip", "route", "add", ROUTE, "via", "198.18.10.1")  # of an administrator

    said = flex(machine, "unbootstrap", "--yes").err

    assert "kept:" not in said
    assert ROUTE in machine.run("ip", "route").out
    machine.run("ip", "route", "delete", ROUTE)
    until(lambda: "veth" not in machine.run("ip", "link").out, "the kernel has removed the links of ended pods", 300)
    assert not (left := differences(before, machine)), left


def network_runs_on(lab: Lab, machine: EdgeMachine) -> bool:
    found = lab.cluster.get("pods", "--namespace", NAMESPACE, "--field-selector", f"spec.nodeName={machine.name}")
    states = [each for pod in found["items"] for each in pod["status"].get("containerStatuses", [])]
    return len(states) == len(DAEMON_SETS) and all(each["ready"] for each in states)
