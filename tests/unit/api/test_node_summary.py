"""Short texts about a node: conditions that need attention, and what follows from an update or a deletion."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.api.node_summary import (
    HEALTHY_IF_TRUE,
    attention,
    deletion_text,
    not_applied_text,
    unhealthy_conditions,
)
from aks_flex_node.error_catalog import load_conditions

READY = {"type": "Ready", "status": "True"}
APPLIED = {"type": "ConfigApplied", "status": "True", "reason": "Applied"}
PAUSED = {"type": "ConfigApplied", "status": "False", "reason": "Paused", "message": "Updates are paused."}


def test_healthy_status_of_each_condition_is_that_of_catalogue() -> None:
    assert {name for name, entry in load_conditions().items() if entry.healthy == "True"} == HEALTHY_IF_TRUE


@pytest.mark.parametrize(
    ("conditions", "policy", "text"),
    [
        ([READY, APPLIED], {}, ""),
        ([{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}], {}, ""),
        ([READY, PAUSED], {"paused": True}, "ConfigApplied=False (Paused)"),
        ([READY, APPLIED], {"paused": True}, "Paused"),
        (
            [READY, {"type": "CredentialsRejected", "status": "True", "reason": "InvalidSecret"}],
            {},
            "CredentialsRejected=True (InvalidSecret)",
        ),
        ([READY, {"type": "ConfigApplied", "status": "Unknown"}], {}, "ConfigApplied=Unknown"),
    ],
)
def test_attention_names_unhealthy_conditions_and_pause(
    conditions: list[dict[str, str]], policy: dict[str, Any], text: str
) -> None:
    properties = {"status": {"conditions": conditions}, "nodeConfig": {"updatePolicy": policy}}

    assert attention(properties) == text


def test_condition_text_contains_no_control_characters() -> None:
    hostile = {"type": "Drifted", "status": "True", "reason": "File\x1b[31m", "message": "a\nb\u202e"}

    [found] = unhealthy_conditions({"conditions": [hostile]})
    assert found.cause == "File[31m: a b"


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"status": {"joinState": "Joined"}}, "is not managed"),
        ({"status": {"joinState": "Joined"}, "continuousMonitoring": True}, ""),
        ({"status": {"joinState": "Joined"}, "poolName": "edge", "effective": {"continuousMonitoring": True}}, ""),
        ({"status": {"joinState": "Created"}}, ""),
        (
            {
                "status": {
                    "conditions": [{"type": "ConfigurationPending", "status": "True", "reason": "NotMonitored"}]
                }
            },
            "is not managed",
        ),
    ],
)
def test_update_of_unmanaged_node_is_reported_as_not_applied(properties: dict[str, Any], words: str) -> None:
    text = not_applied_text("edge-1", {"properties": properties})

    assert words in text if words else text == ""


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"status": {"joinState": "Created"}}, ""),
        ({"status": {"joinState": "Joined"}}, "`aks-flex-node unbootstrap`"),
        ({"status": {"joinState": "Failed"}}, "`aks-flex-node unbootstrap`"),
        (
            {"status": {"joinState": "Joined"}, "effective": {"continuousMonitoring": True}},
            "unbootstraps its machine",
        ),
        ({"status": {"joinState": "Joined"}, "continuousMonitoring": True}, "unbootstraps its machine"),
        ({"status": {"joinState": "Joined"}, "continuousMonitoring": True}, "unless the machine's policy"),
        (
            {
                "status": {"joinState": "Joined"},
                "continuousMonitoring": True,
                "nodeConfig": {"unbootstrapOnDelete": False},
            },
            "`aks-flex-node unbootstrap`",
        ),
    ],
)
def test_deletion_says_what_happens_to_the_machine(properties: dict[str, Any], words: str) -> None:
    text = deletion_text("edge-1", {"properties": properties})

    assert words in text if words else text == ""
