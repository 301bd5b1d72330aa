"""The agent updates itself when its resource specifies a version, and rolls back a version that does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, exists
from tests.managed_node import ManagedLabNode
from tests.releases import published
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

WORK = "aks-flex-node-job.service"


def agent(node: ManagedLabNode) -> str:
    return str(node.provider.get(node.name).get("status", {}).get("agentVersion", ""))


@pytest.mark.promise
def test_self_update_switches_version_and_failed_one_rolls_back(lab: Lab, add_machine: Add) -> None:
    node = ManagedLabNode.make(lab, add_machine("self-1"))
    machine = node.machine
    before = machine.snapshot()
    node.join()
    until(lambda: agent(node) not in {"", "0.2.0"}, "it reports its version")
    first = agent(node)

    with published(lab, machine, "0.2.0", works=True):
        node.update(versions={"agent": "0.2.0"})
        until(lambda: agent(node) == "0.2.0", "it is another version")
        node.update(versions={})
        until(lambda: agent(node) == first, "it is what the machine came with")
        until(lambda: not exists(machine, "/opt/aks-flex-node/agent"), "and nothing else")
        until(lambda: not machine.run("systemctl", "is-active", WORK, check=False).ok, "the work has ended")
        assert node.status()["daemon"]["lastJob"]["result"] == "done"
        node.update(versions={"agent": "0.2.0"})
        until(lambda: agent(node) == "0.2.0", "and becomes the other again")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"by": "the-new-one"}}))
    assert node.node()["metadata"]["labels"]["by"] == "the-new-one"

    with published(lab, machine, "0.3.0", works=False):
        node.update(versions={"agent": "0.3.0"})
        # The previous version may report the rollback before the job has added why the first start failed.
        until(lambda: "built to fail" in node.condition("AgentUpdateFailed").get("message", ""), "it went back")
    assert node.condition("AgentUpdateFailed")["status"] == "True"
    assert agent(node) == "0.2.0" != first
    node.wait_until_applied(node.update(nodeConfig={"labels": {"by": "the-same"}}))
    assert node.node()["metadata"]["labels"]["by"] == "the-same"

    node.delete()
    node.wait_until_left()
    assert differences(before, machine) == []
