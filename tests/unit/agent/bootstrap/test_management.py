"""Tests of what a join says about the management of a node."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.bootstrap.management import describe_service
from aks_flex_node.agent.paths import DAEMON_STATE
from tests.hosts.recorded import RecordedHost


def described(state: str, *, follows: bool = True, fetched: bool = False) -> str:
    return describe_service(RecordedHost({DAEMON_STATE: state}), "edge-1", follows=follows, fetched=fetched)


def test_join_with_a_revoked_key_names_the_remedy() -> None:
    text = described('{"provider_state": "NodeKeyRevoked"}')
    assert "the provider refuses the key of this machine" in text
    assert "`aks-flex-rp node join-command --name edge-1`" in text
    assert "now manages" not in text


def test_join_with_a_new_url_does_not_repeat_an_earlier_refusal() -> None:
    assert "now manages this node" in described('{"provider_state": "NodeKeyRevoked"}', fetched=True)


@pytest.mark.parametrize("state", ["", "{", "[]", "7", '{"provider_state": "Connected"}', '{"provider_state": []}'])
def test_join_says_that_the_service_manages_the_node(state: str) -> None:
    assert "aks-flex-node.service now manages this node." in described(state)
    assert "aks-flex-node.service now watches this node." in described(state, follows=False)
