"""The agent of the release before node keys with the provider of this checkout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.agents import differences, flex
from tests.earlier_release import EarlierRelease
from tests.enrolled_node import Enrolments
from tests.managed_node import ManagedLabNode
from tests.releases import published
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

UPDATED = "/opt/aks-flex-node/agent/current/bin/aks-flex-node"  # a self-update does not change /usr/bin


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> EarlierRelease:
    return EarlierRelease.extract(tmp_path_factory.mktemp("earlier"))


def key(node: ManagedLabNode) -> dict[str, Any]:
    found: dict[str, Any] = node.provider.get(node.name).get("status", {}).get("nodeKey", {})
    return found


def test_earlier_agent_is_managed_and_gets_a_key_when_updated(
    lab: Lab, add_machine: Add, earlier: EarlierRelease
) -> None:
    node = ManagedLabNode.make(lab, add_machine("earlier-1"))
    machine = node.machine
    earlier.install_agent(machine)
    before = machine.snapshot()

    # What it cannot do, it is told.
    enrolments = Enrolments(node.provider, "earlier")
    enrolments.put_pool()
    _, url = enrolments.create(maxUses=1)
    assert "Update the agent on this machine" in flex(machine, "agent", "--config-url", url, check=False).err
    enrolments.delete()
    url = node.provider.put("earlier-2", {"continuousMonitoring": True})
    assert "Update the agent on this machine" in flex(machine, "agent", "--config-url", url, check=False).err
    node.provider.delete("earlier-2")
    assert differences(before, machine) == []

    node.join()
    until(lambda: node.condition("Ready").get("status") == "True", "the node reports by its Azure identity")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "gold"}}))
    assert node.node()["metadata"]["labels"]["tier"] == "gold"
    assert key(node) == {}

    with published(lab, machine, "0.2.0", works=True):
        node.update(versions={"agent": "0.2.0"})
        until(lambda: node.provider.get(node.name)["status"].get("agentVersion") == "0.2.0", "the agent is updated")
    until(lambda: key(node).get("state") == "Bound", "the node has a key")
    shown = json.loads(machine.run(UPDATED, "node-key", "show", "--json").out)
    assert shown["thumbprint"] == key(node)["thumbprint"]
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "silver"}}))
    until(lambda: machine.run(UPDATED, "verify", check=False).ok, "the machine is as the new agent requires")
    machine.run(UPDATED, "unbootstrap", "--yes", "--drain-timeout", "5")
    assert differences(before, machine) == []
    node.delete()
