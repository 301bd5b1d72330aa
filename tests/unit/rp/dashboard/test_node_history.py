"""Tests of the history of a node: audit events and reports of the machine."""

from __future__ import annotations

from typing import Any

from aks_flex_rp.dashboard.node_history import MACHINE, MAX_CHANGES, MAX_ENTRIES, node_history
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome


def event(at: float, what: str, outcome: str = "ok", **detail: Any) -> AuditEvent:
    return AuditEvent(at, "anna", AuditAction(what), "/n", "192.0.2.7", outcome=AuditOutcome(outcome), detail=detail)


def test_node_history_is_limited_and_newest_first() -> None:
    found = node_history([event(at, "configUrl.fetched") for at in range(50)])
    assert [each.at for each in found] == [*range(49, 49 - MAX_ENTRIES, -1)]


def test_history_entry_of_update_lists_changes() -> None:
    changes = {
        "versions": [None, {"runc": "1.5.2"}],
        "nodeConfig.maxPods": [110, 50],
        "nodeConfig.labels.a": ["x", None],
    }
    [moment] = node_history([event(1, "update", changed=changes, secretWritten=True)])
    assert moment.what == "Versions changed"
    assert moment.changes == (
        "versions.runc: 1.5.2",
        "nodeConfig.maxPods: 110 → 50",
        "nodeConfig.labels.a: x removed",
        "new secret",
    )


def test_history_entry_with_many_changes_is_truncated() -> None:
    changes = {f"nodeConfig.labels.l{number}": [None, "x"] for number in range(40)}
    [moment] = node_history([event(1, "update", changed=changes)])
    assert len(moment.changes) == MAX_CHANGES + 1
    assert moment.changes[-1] == f"and {40 - MAX_CHANGES} more"


def test_cluster_sync_is_distinguished_from_user_updates_in_history() -> None:
    [moment] = node_history([event(1, "update", configVersion="2")])
    assert moment.what == "Updated for changed cluster"


def test_denied_requests_are_shown_as_refused_in_history() -> None:
    refused, certificate = node_history(
        [event(2, "write", "denied"), event(1, "certificate.denied", "denied", why="no")]
    )
    assert (refused.what, refused.bad) == ("Change denied", True)
    assert (certificate.what, certificate.message) == ("Certificate denied", "no")


def test_unknown_audit_action_is_shown_verbatim() -> None:
    assert node_history([event(1, "node.painted")])[0].what == "node.painted"


def test_drift_update_and_rollback_are_shown_in_history_from_status() -> None:
    conditions = [
        {
            "type": "UpgradeFailed",
            "status": "True",
            "message": "not Ready",
            "lastTransitionTime": "2026-11-15T10:00:03Z",
        },
        {"type": "Drifted", "status": "True", "message": "a file", "lastTransitionTime": "2026-11-15T10:00:02Z"},
        {"type": "Ready", "status": "True", "message": "ok", "lastTransitionTime": "2026-11-15T10:00:00Z"},
    ]
    status = {
        "conditions": conditions,
        "lastConfigApplied": "2026-11-15T10:00:01Z",
        "appliedConfigVersion": "7",
        "lastDriftDetected": "2026-11-15T10:00:02Z",
    }
    found = node_history([], status)
    assert [(each.what, each.message) for each in found] == [
        ("Update failed and was rolled back", "not Ready"),
        ("Drift detected", "a file"),
        ("Configuration 7 applied", ""),
        ("Ready", ""),
    ]
    assert {each.who for each in found} == {MACHINE}


def test_credential_reads_are_only_in_the_audit_log_unless_denied() -> None:
    reads = [event(at, "listCredentials") for at in range(2, 60)]
    found = node_history([*reads, event(1, "create"), event(0, "listCredentials", "denied")])
    assert [each.what for each in found] == ["Created", "Read of credentials denied"]
