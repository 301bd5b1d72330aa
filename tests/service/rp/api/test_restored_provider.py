"""A provider restored from a backup that is older than a node's key, and the agent that comes back to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.identity.node_key import NodeKeyStore, new_key
from aks_flex_node.agent.paths import NODE_KEY, NODE_KEY_COPY, STATE_DIR
from aks_flex_node.agent.provider.key_rotation import REBIND_SECONDS, KeyRotation, rotate_key
from aks_flex_node.agent.provider.node_assertions import NodeAssertions
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderRequestError, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.real import RootedHost
from aks_flex_rp.node_keys import NodeKeys
from tests.node_key_client import HeldKey
from tests.service.rp.api.keyed_nodes import AUDIENCE, ONE, NodeWithKey

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.identity.node_key import StoredKey
    from tests.service.rp.api.service_harness import Running


class Agent:
    """The agent of a joined node, whose child processes run in this one."""

    def __init__(self, node: NodeWithKey, room: Path) -> None:
        (room / STATE_DIR.lstrip("/")).mkdir(parents=True)
        self.node, self.service, self.host = node, node.service, RootedHost(room)
        self.store, self.now, self.children = NodeKeyStore(self.host), 1000.0, 0
        machine = node.machine()
        machine.key = HeldKey(self.store.ensure().private_key)
        config = load_text(machine.fetch(node.url).text, "test", {}, {}).config
        node.observe(ONE)
        self.store.bind(AUDIENCE)
        endpoint = provider_endpoint(config, node.name)
        assertions = NodeAssertions("agent", self.host, endpoint.resource_id, in_process=True)
        self.client = ProviderClient(endpoint, config, ProviderTokens("agent", str), assertions, machine=ONE)
        rotation = KeyRotation("agent", self.host, lambda: self.now, run=self.run)
        self.source = ProviderSource(self.client, config, node.name, rotation=rotation)

    def run(self, *_: object, **__: object) -> CommandResult:
        self.children += 1
        try:
            rotate_key(self.client, self.store)
        except ProviderRequestError as error:
            return CommandResult(1, "", error.result.message)
        return CommandResult(0, "")

    @property
    def key(self) -> StoredKey:
        key = self.store.read()
        assert key
        return key

    def keys(self) -> NodeKeys:
        """Returns the keys that the provider knows."""
        return self.service.node(self.node.name).join.keys

    def restore(self, keys: NodeKeys) -> None:
        """Puts earlier keys back, as a backup does, and forgets verified assertions, as the restart does."""
        found = self.service.node(self.node.name)
        self.service.call(self.service.store.put_node(replace(found, join=found.join.with_keys(keys)), found.etag))
        self.service.service.app.authorizer.verifier._seen.clear()

    def rotate(self) -> None:
        rotate_key(self.client, self.store)
        assert self.source.poll("", 0).is_ok


@pytest.fixture
def agent(service: Running, name: str, tmp_path: Path) -> Agent:
    return Agent(NodeWithKey(service, name), tmp_path)


def test_node_comes_back_to_a_provider_restored_from_a_backup(agent: Agent) -> None:
    assert agent.source.poll("", 0).is_ok
    first, backup = agent.key.thumbprint, agent.keys()
    agent.rotate()
    second = agent.key.thumbprint
    assert agent.key.previous
    assert (first, agent.keys().current) == (agent.key.previous.thumbprint, second)
    agent.restore(backup)

    refused = agent.source.poll("", 0)

    assert (refused.code, agent.children) == ("NodeKeyNotKnown", 1)
    assert agent.source.poll("", 0).is_ok
    assert (agent.key.thumbprint, agent.key.next, agent.keys().current) == (second, None, second)
    assert [each["detail"]["before"] for each in agent.node.events("rotateKey")] == [first, first]
    assert agent.children == 1


def test_only_one_predecessor_is_kept_in_files_for_root_only(agent: Agent) -> None:
    for _ in range(2):
        before = agent.key.thumbprint
        agent.rotate()
    assert agent.key.previous
    assert (agent.key.previous.thumbprint, agent.key.previous.previous) == (before, None)
    for path in (NODE_KEY, NODE_KEY_COPY):
        entry = agent.host.stat(path)
        assert entry
        assert entry.mode & 0o777 == 0o600
        assert json.loads(agent.host.read(path) or b"")["previous"]["thumbprint"] == before
    made = agent.store.renew()
    agent.store.bind(AUDIENCE, made.thumbprint)
    renewed = agent.store.read()
    assert renewed
    assert (renewed.thumbprint, renewed.previous) == (made.thumbprint, None)


def test_revoked_key_does_not_fall_back(agent: Agent) -> None:
    agent.rotate()
    agent.node.revoke()

    for _ in range(3):
        assert agent.source.poll("", 0).state is ProviderState.KEY_REVOKED
    with pytest.raises(ProviderRequestError, match="was revoked"):
        rotate_key(agent.client, agent.store)

    assert (agent.children, agent.keys().current) == (0, "")


def test_previous_key_that_was_revoked_binds_nothing(agent: Agent) -> None:
    agent.rotate()
    assert agent.key.previous
    earlier = agent.key.previous.thumbprint
    agent.restore(NodeKeys(new_key(0.0).thumbprint, revoked=(earlier,)))
    assert agent.source.poll("", 0).code == "NodeKeyNotKnown"
    assert agent.source.poll("", 0).code == "NodeKeyNotKnown"
    assert agent.keys().next == ""


def test_key_that_stays_unknown_is_tried_once_an_hour(agent: Agent) -> None:
    agent.rotate()
    before = agent.key
    agent.restore(NodeKeys(new_key(0.0).thumbprint))
    for _ in range(5):
        assert agent.source.poll("", 0).code == "NodeKeyNotKnown"
    assert agent.children == 1
    agent.now += REBIND_SECONDS
    agent.source.poll("", 0)
    assert (agent.children, agent.key.thumbprint) == (2, before.thumbprint)


def test_key_without_a_predecessor_starts_no_process(agent: Agent) -> None:
    agent.restore(NodeKeys(new_key(0.0).thumbprint))
    assert [agent.source.poll("", 0).code for _ in range(2)] == ["NodeKeyNotKnown"] * 2
    assert agent.children == 0
