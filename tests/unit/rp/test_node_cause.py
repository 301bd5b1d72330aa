"""Tests of the cause that lists show for a node."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.cli import output
from aks_flex_rp.node_conditions import node_cause
from aks_flex_rp.store import fleet

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
STOPPED = {"type": "Ready", "status": "False", "reason": "ServiceFailed", "message": "kubelet is not running"}


def waiting(reason: str, message: str) -> dict[str, str]:
    return {"type": "ConfigApplied", "status": "False", "reason": reason, "message": message}


REFUSED = {
    "type": "CredentialsRejected",
    "status": "True",
    "reason": "VerificationFailed",
    "message": "The new credentials do not work yet.",
}
PAUSED = waiting("Paused", "Updates of this node are paused.")
CLOSED = waiting("MaintenanceWindowClosed", "The maintenance window opens at 22:00.")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([READY], ""),
        ([READY, {"type": "ConfigApplied", "status": "True", "reason": "Applied"}], ""),
        ([READY, waiting("InProgress", "Applying configuration 2.")], ""),
        ([READY, PAUSED], "Updates of this node are paused."),
        ([READY, CLOSED], "The maintenance window opens at 22:00."),
        ([READY, REFUSED], "The new credentials do not work yet."),
        ([STOPPED, PAUSED], "kubelet is not running"),
    ],
)
def test_paused_closed_or_refused_update_has_a_cause(conditions: list[dict[str, Any]], expected: str) -> None:
    status = {"joinState": "Joined", "conditions": conditions}

    assert node_cause(status) == expected
    assert fleet.status_columns(status)[1] == expected
    shown = {"name": "edge-1", "properties": {"status": {**status, "cause": expected}, "configVersion": "1"}}
    assert expected in output.format_nodes([shown], 0.0)
    assert expected in output.format_node({**shown, "id": "/edge-1"}, 0.0)


@pytest.mark.parametrize("state", ["Created", "ConfigFetched", "BootstrapAttempted", "Left"])
def test_node_that_has_not_joined_has_no_cause(state: str) -> None:
    assert node_cause({"joinState": state, "conditions": [{"type": "Ready", "status": "Unknown"}]}) == ""


def test_failed_join_is_the_cause() -> None:
    assert (
        node_cause({"joinState": "Failed", "joinFailure": "The disk is full.", "conditions": []})
        == "The disk is full."
    )
