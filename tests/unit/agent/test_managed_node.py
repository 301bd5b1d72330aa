"""Tests of this machine as a node: whether its Node lives here."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.agent.config_sources.source import LocalSource
from aks_flex_node.agent.managed_node import BOOT_ID, ManagedNode
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.builders import Answers, config_of, empty_host, engine_on

NODE = {"metadata": {"name": "edge-1"}, "spec": {}}
UNREACHABLE = ClusterError("api-server-unreachable", "No response.", "")


@pytest.mark.parametrize(
    ("answer", "elsewhere"),
    [
        ({**NODE, "status": {"nodeInfo": {"bootID": "boot-1", "machineID": "another"}}}, False),
        ({**NODE, "status": {"nodeInfo": {"bootID": "boot-2"}}}, True),
        ({**NODE, "status": {}}, False),
        (UNREACHABLE, False),
    ],
    ids=["same boot, new machine ID", "other boot", "not reported", "cluster unreachable"],
)
def test_node_lives_elsewhere_only_if_another_boot_reports_it(answer: Any, elsewhere: bool) -> None:
    host = empty_host()
    host.apply(WriteFile(BOOT_ID, b"boot-1\n", 0o444))
    api = Answers({("GET", "/api/v1/nodes/edge-1"): [answer]}).client
    node = ManagedNode(engine_on(host, config_of({})), api, "edge-1", LocalSource())

    assert node.is_another_machine() is elsewhere
