"""What the provider reads of a Node."""

from __future__ import annotations

from typing import Any

from aks_flex_rp.clusters.node_controller import readiness, reported_fields

ANNOTATIONS = {
    "flex.aks.azure.com/applied-config-version": "7",
    "flex.aks.azure.com/last-config-applied": "2026-01-02T03:04:05Z",
}


def node(annotations: dict[str, str] | None) -> dict[str, Any]:
    return {
        "metadata": {"name": "edge-1", "annotations": annotations},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        },
    }


def test_readiness_contains_the_config_that_the_node_applied() -> None:
    found = readiness(node(ANNOTATIONS))
    assert (found["appliedConfigVersion"], found["lastConfigApplied"]) == ("7", "2026-01-02T03:04:05Z")
    assert readiness(node(None))["appliedConfigVersion"] == ""


def test_newly_applied_config_is_reported_although_the_node_stays_ready() -> None:
    assert reported_fields(readiness(node(ANNOTATIONS))) != reported_fields(readiness(node({})))
