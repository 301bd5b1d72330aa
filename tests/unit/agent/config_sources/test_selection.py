"""Tests of the selection of a node's config source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.config_sources.selection import describe_source, open_source, waits_for_node_deletion
from aks_flex_node.agent.paths import CURRENT_CONFIG
from tests.unit.agent.config.builders import CLUSTER_ID, load_plain
from tests.unit.agent.daemon.fakes import FakeHost, engine_of, settings

POOL = f"{CLUSTER_ID}/agentPools/edge"
AZURE = {"targetCluster": {"resourceId": CLUSTER_ID}, "targetAgentPoolName": "edge"}
STANDALONE = {"continuousMonitoring": False}
PROVIDER = {"kind": "provider", "address": "https://provider.example"}
LOCAL = {"kind": "local", "address": CURRENT_CONFIG}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"provider": {"url": "https://provider.example"}}, PROVIDER),
        ({}, {"kind": "provider", "address": "https://management.azure.com"}),
        (STANDALONE, LOCAL),
        (
            {"azure": {**AZURE, "managedIdentity": {}}},
            {"kind": "provider", "address": "https://management.azure.com"},
        ),
        (
            {**STANDALONE, "azure": {**AZURE, "managedIdentity": {}}},
            {"kind": "aksPool", "address": POOL, "machine": "edge-1"},
        ),
        (
            {**STANDALONE, "azure": {**AZURE, "managedIdentity": {}}, "aks": {"machineName": "m-7"}},
            {"kind": "aksPool", "address": POOL, "machine": "m-7"},
        ),
        (
            {**STANDALONE, "azure": AZURE},
            {**LOCAL, "note": f"The node joined {POOL}, but has no Azure identity to follow it."},
        ),
    ],
    ids=[
        *("provider", "azure", "standalone", "managed in a pool"),
        *("pool", "named machine", "pool without identity"),
    ],
)
def test_config_source_follows_from_the_configuration(changes: dict[str, Any], expected: dict[str, str]) -> None:
    document = {**settings(secret="s"), **changes}
    config = load_plain(json.dumps(document)).config
    source = open_source(engine_of(FakeHost(document)), "edge-1")
    assert source.description.as_document() == expected
    assert describe_source(config, "edge-1").as_document() == expected
    assert (source.schedule is not None) == (expected["kind"] != "local")
    assert source.accepts_reports == (expected["kind"] == "provider")
    assert source.signals_by_node == waits_for_node_deletion(config) == (expected["kind"] == "aksPool")
