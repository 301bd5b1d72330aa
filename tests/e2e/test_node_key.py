"""Life of a managed node without any Azure identity: it joins, reports and recovers by the key of its machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.agents import differences, exists, facts, flex, install_agent
from tests.enrolled_node import KeyNode
from tests.managed_node import ManagedLabNode
from tests.providers import VERSION
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

KEY_FILE = "/var/lib/aks-flex-node/node-key.json"
KEY_COPY = "/var/lib/aks-flex-node/node-key.copy.json"


@dataclass(frozen=True)
class UnidentifiedNode(KeyNode):
    """A node whose resource names no identity in Azure."""

    properties: dict[str, Any] = field(default_factory=dict)

    def url(self) -> str:
        return self.provider.put(self.name, {"continuousMonitoring": True, **self.properties})

    def act(self, action: str, body: Any = None) -> Any:
        answer = self.provider.ask("POST", f"{self.provider.node(self.name, f'/{action}')}?{VERSION}", body)
        assert answer.status == 200, answer
        return answer.document

    def join(self) -> None:
        flex(self.machine, "agent", "--config-url", self.url())

    def update(self, **properties: Any) -> str:
        self.properties.update(properties)
        body = {"properties": {"continuousMonitoring": True, **self.properties}}
        answer = self.provider.ask("PUT", f"{self.provider.node(self.name)}?{VERSION}", body)
        assert answer.status == 200, answer
        return str(answer.document["properties"]["configVersion"])

    def is_ready(self) -> bool:
        return self.condition("Ready").get("status") == "True" and "nodeKey" in self.status


@pytest.fixture
def node(lab: Lab, add_machine: Add) -> Iterator[UnidentifiedNode]:
    machine = add_machine("key-1")
    install_agent(machine)
    made = UnidentifiedNode(lab, machine)
    yield made
    made.provider.delete(made.name)


def test_managed_node_lives_by_its_key_without_azure(lab: Lab, node: UnidentifiedNode) -> None:
    machine = node.machine
    before = machine.snapshot()

    node.join()

    until(node.is_ready, "the agent reports by its key")
    first = node.key
    assert node.status["nodeKey"]["thumbprint"] == first["thumbprint"]
    assert node.status["nodeKey"]["fingerprint"] == first["fingerprint"]
    assert machine.run("stat", "-c", "%a", KEY_FILE, KEY_COPY).out.split() == ["600", "600"]
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "gold"}}))
    assert lab.cluster.get("node", node.name)["metadata"]["labels"]["tier"] == "gold"

    # The certificate is lost: the key gets a new bootstrap token for the node.
    machine.run("rm", "-rf", "/var/lib/kubelet/pki")
    machine.run("systemctl", "restart", "kubelet")
    until(lambda: exists(machine, "/var/lib/kubelet/pki/kubelet-client-current.pem"), "new")
    until(node.is_ready, "the node is Ready again")

    # One damaged file never loses the node.
    machine.run("sh", "-c", f"echo damaged > {KEY_FILE}")
    machine.run("systemctl", "restart", "aks-flex-node")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "silver"}}))

    # The key is replaced on request.
    flex(machine, "node-key", "rotate")
    second = node.key
    assert second["thumbprint"] != first["thumbprint"]
    until(lambda: node.status["nodeKey"]["thumbprint"] == second["thumbprint"], "the new key is in use")
    node.wait_until_applied(node.update(nodeConfig={}))

    # Revoked: the node stays a node, and both sides say why it is not heard from.
    node.act("revokeKey")
    until(lambda: "NodeKeyRevoked" in json.dumps(facts(machine, "status")), "the agent shows the cause")
    assert "join-command" in json.dumps(facts(machine, "status"))
    assert any(each["type"] == "NodeKeyRevoked" for each in node.status["conditions"])
    assert lab.cluster.get("node", node.name) is not None
    flex(machine, "agent", "--config-url", node.act("regenerateToken")["configUrl"])
    until(node.is_ready, "a new key is bound")
    assert node.key["thumbprint"] not in {first["thumbprint"], second["thumbprint"]}
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "bronze"}}))

    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    assert differences(before, machine) == []


def test_second_machine_is_refused_in_words(lab: Lab, node: UnidentifiedNode, add_machine: Add) -> None:
    other = add_machine("key-2")
    install_agent(other)
    before = other.snapshot()
    url = node.url()
    flex(node.machine, "bootstrap", "--dry-run", "--config-url", url)  # fetches the URL, and so binds it

    refused = flex(other, "agent", "--config-url", url, check=False)

    assert refused.code == 3
    assert "config-url-taken" in refused.err
    assert node.name in refused.err
    assert differences(before, other) == []
    flex(node.machine, "agent", "--config-url", url)
    until(node.is_ready, "the first machine joins")
    [event] = [each for each in node.provider.audit(node.name) if each["what"] == "configUrl.reused"]
    assert event["detail"]["machine"]["hostName"] == other.name
    assert event["detail"]["first"]["key"] == node.key["thumbprint"]


def test_node_with_azure_identity_gets_a_key_at_its_next_poll(lab: Lab, add_machine: Add) -> None:
    """As a node whose disk was restored without its key."""
    node = ManagedLabNode.make(lab, add_machine("key-3"))
    machine = node.machine
    node.join()
    until(lambda: "nodeKey" in node.provider.get(node.name)["status"], "the join binds a key")
    machine.run("systemctl", "stop", "aks-flex-node")
    machine.run("rm", KEY_FILE, KEY_COPY)
    before = node.provider.get(node.name)["status"]["nodeKey"]["thumbprint"]

    machine.run("systemctl", "start", "aks-flex-node")

    until(lambda: machine.run("test", "-s", KEY_FILE, check=False).ok, "the machine has a key again")
    until(
        lambda: node.provider.get(node.name)["status"]["nodeKey"]["thumbprint"] != before,
        "the Azure identity has bound the new key, which is in use",
    )
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "gold"}}))
    assert any(each["what"] == "rotateKey" for each in node.provider.audit(node.name))
    node.delete()
