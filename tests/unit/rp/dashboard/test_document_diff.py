"""Tests of document differences, and of restoring earlier documents from the audit log."""

from __future__ import annotations

from typing import Any

from aks_flex_rp.dashboard import document_diff
from aks_flex_rp.dashboard.document_diff import DiffLine
from aks_flex_rp.nodes.context import property_changes
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome

Document = dict[str, Any]

FIRST: Document = {
    "azureAuth": {"method": "none"},
    "nodeConfig": {
        "labels": {"a": "1", "example.com/zone": "x"},
        "kubelet": {"evictionHard": {"memory.available": "5%"}},
    },
}
SECOND: Document = {
    "azureAuth": {"method": "none"},
    "versions": {"kubernetes": "1.34.4"},
    "nodeConfig": {"labels": {"a": "2", "b": "3"}, "kubelet": {"evictionHard": {"memory.available": "9%"}}},
}
THIRD: Document = {
    "azureAuth": {"method": "arc", "arc": {"machineName": "m"}},
    "versions": {"kubernetes": "1.34.4"},
    "nodeConfig": {"labels": {"a": "2", "example.com/zone": "y"}, "taints": [{"key": "k", "effect": "NoSchedule"}]},
}


def write(version: int, before: Document, after: Document, what: str = "update") -> AuditEvent:
    """Returns an audit event as the service records it."""
    return AuditEvent(
        1.0,
        "p",
        AuditAction(what),
        "/n",
        detail={"configVersion": str(version), "changed": property_changes(before, after)},
    )


HISTORY = [write(3, SECOND, THIRD), write(2, FIRST, SECOND), write(1, {}, FIRST, "create")]


def test_applied_properties_are_reconstructed_from_history() -> None:
    for has, expected in (("3", THIRD), ("2", SECOND), ("1", FIRST)):
        found = document_diff.applied_properties(THIRD, 3, has, HISTORY)
        assert found is not None
        assert found.properties == expected
        assert not found.renewed


def test_applied_properties_are_unknown_when_history_is_incomplete() -> None:
    assert document_diff.applied_properties(THIRD, 3, "1", HISTORY[:2]) is None
    assert document_diff.applied_properties(THIRD, 3, "0", HISTORY) is None
    assert document_diff.applied_properties(THIRD, 3, "1", []) is None


def test_denied_updates_are_ignored_in_history() -> None:
    refused = AuditEvent(
        1.0,
        "p",
        AuditAction.UPDATE,
        "/n",
        outcome=AuditOutcome.DENIED,
        detail={"changed": {"versions": [{"x": "y"}, None]}},
    )
    found = document_diff.applied_properties(THIRD, 3, "2", [refused, *HISTORY])
    assert found is not None
    assert found.properties == SECOND


def test_update_by_cluster_sync_is_detected_in_history() -> None:
    renewed = AuditEvent(2.0, "cluster watch", AuditAction.UPDATE, "/n", detail={"configVersion": "4"})
    found = document_diff.applied_properties(THIRD, 4, "3", [renewed, *HISTORY])
    assert found is not None
    assert found.renewed
    assert found.properties == THIRD


def test_diff_returns_smallest_differing_values() -> None:
    assert document_diff.diff({"a": {"x": 1}}, {"a": {"x": 2}, "b": {"y": {"z": []}}}) == {
        ("a", "x"): (1, 2),
        ("b", "y", "z"): (None, []),
    }
    assert document_diff.diff({"a": {"x": 1}}, {}) == {("a", "x"): (1, None)}
    assert document_diff.diff({"a": {"x": 1}}, {"a": "text"}) == {("a",): ({"x": 1}, "text")}
    assert document_diff.diff({}, {"a": {}}) == {("a",): (None, {})}


def test_applying_diff_and_its_reverse_restores_document() -> None:
    forth = {path: new for path, (_, new) in document_diff.diff(FIRST, THIRD).items()}
    back = {path: old for path, (old, _) in document_diff.diff(FIRST, THIRD).items()}
    assert document_diff.apply_values(FIRST, forth) == THIRD
    assert document_diff.apply_values(THIRD, back) == FIRST


def test_removing_missing_value_changes_nothing() -> None:
    assert document_diff.apply_values({"a": {"b": 1}}, {("x", "y", "z"): None, ("a", "b", "c"): None}) == {
        "a": {"b": 1}
    }


def test_diff_lines_show_old_and_new_values() -> None:
    told = document_diff.diff_lines(
        {"versions": (None, {"runc": "1", "cni": "2"}), "n": ("1", "2"), "old": ([], None)}
    )
    assert told == [
        DiffLine("versions.runc", "", "1"),
        DiffLine("versions.cni", "", "2"),
        DiffLine("n", "1", "2"),
        DiffLine("old", "[]", ""),
    ]
    assert [each.kind for each in told] == ["added", "added", "changed", "removed"]


def test_path_segments_with_dots_are_quoted() -> None:
    assert document_diff.name_of(("labels", "example.com/a")) == 'labels."example.com/a"'
