"""Tests of the selection of a node's config source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config_sources.selection import describe_source, open_source
from aks_flex_node.agent.paths import CURRENT_CONFIG
from tests.unit.agent.daemon.fakes import FakeHost, engine_of, settings

PROVIDER = {"kind": "provider", "address": "https://provider.example"}
LOCAL = {"kind": "local", "address": CURRENT_CONFIG}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"provider": {"url": "https://provider.example"}}, PROVIDER),
        ({}, {"kind": "provider", "address": "https://management.azure.com"}),
        ({"continuousMonitoring": False}, LOCAL),
    ],
    ids=["provider", "azure", "standalone"],
)
def test_config_source_follows_from_the_configuration(changes: dict[str, Any], expected: dict[str, str]) -> None:
    document = {**settings(secret="s"), **changes}
    config = load_text(json.dumps(document), "test", {}, {}).config
    source = open_source(engine_of(FakeHost(document)), "edge-1")
    assert source.description.as_document() == expected
    assert describe_source(config, "edge-1").as_document() == expected
    assert (source.schedule is not None) == source.accepts_reports == (expected is not LOCAL)
