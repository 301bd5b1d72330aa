"""The agent of this checkout with the provider of the release before node keys, which is then updated in place."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from tests.agents import differences, facts, flex
from tests.earlier_release import EarlierRelease, LabOfEarlierProvider
from tests.enrolled_node import prepare_to_enrol
from tests.harness import LAB, Lines
from tests.managed_node import ManagedLabNode
from tests.providers import VERSION
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.fixture
def earlier_lab(tmp_path: Path) -> Iterator[LabOfEarlierProvider]:
    """A lab of its own, because a cluster has one provider, and that of the release cannot read a newer database."""
    source = EarlierRelease.extract(tmp_path).source
    lab = LabOfEarlierProvider(lab_layout(f"{LAB}-b"), source=source)
    lab.down()
    try:
        lab.up(Lines())
        yield lab
    finally:
        left = lab.down()
    assert left == []


def add(lab: Lab, name: str) -> EdgeMachine:
    with lab.exclusive():
        return lab.inventory.add(name, DebianRelease.BOOKWORM, "site-1")


def key(node: ManagedLabNode) -> dict[str, Any]:
    found: dict[str, Any] = node.provider.get(node.name).get("status", {}).get("nodeKey", {})
    return found


def state(machine: EdgeMachine) -> str:
    return str((facts(machine, "status").get("daemon") or {}).get("providerState"))


def stop_provider(lab: Lab) -> None:
    process = lab.supervisor.process("provider")
    assert process
    process.stop()


def test_agent_works_with_earlier_provider_until_it_is_updated(
    earlier_lab: LabOfEarlierProvider, tmp_path: Path
) -> None:
    node = ManagedLabNode.make(earlier_lab, add(earlier_lab, "later-1"))
    machine, provider = node.machine, node.provider
    before = machine.snapshot()
    node.join()
    until(lambda: node.condition("Ready").get("status") == "True", "the node reports by its Azure identity")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "gold"}}))
    assert key(node) == {}

    # A managed node needs an Azure identity there. Both sides say so.
    body = {"properties": {"continuousMonitoring": True}}
    refused = provider.ask("PUT", f"{provider.node('later-2')}?{VERSION}", body)
    assert refused.status == 400
    assert "continuousMonitoring needs an Azure identity" in str(refused.document)
    other = add(earlier_lab, "later-2")
    prepare_to_enrol(other)
    url = provider.put("later-2", {})
    told = flex(other, "agent", "--config-url", url, "--set", "continuousMonitoring=true", check=False).err
    assert "azure-identity-missing" in told
    assert "a provider that is not older than this agent" in told

    # The provider is updated in place, with its database.
    stop_provider(earlier_lab)
    copy = shutil.copytree(earlier_lab.provider.state, tmp_path / "backup")
    Lab(earlier_lab.layout).up(Lines())
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "silver"}}))
    machine.run("systemctl", "restart", "aks-flex-node")
    until(lambda: key(node).get("state") == "Bound", "the node has a key")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "bronze"}}))
    assert node.node()["metadata"]["labels"]["tier"] == "bronze"
    flex(other, "agent", "--config-url", provider.put("later-2", {"continuousMonitoring": True}))
    until(lambda: state(other) == "Connected", "the agent signs in by its key")
    assert provider.get("later-2")["status"]["nodeKey"]["state"] == "Bound"

    # The update is taken back, with a backup that does not know the key: the Azure identity works as before.
    stop_provider(earlier_lab)
    shutil.rmtree(earlier_lab.provider.state)
    shutil.copytree(copy, earlier_lab.provider.state)
    earlier_lab.up(Lines())
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "iron"}}))
    until(lambda: state(machine) == "Connected", "the agent signs in by its Azure identity")
    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    assert differences(before, machine) == []
