"""What differs is found and told, and the audit leads back to what was before."""

from __future__ import annotations

from typing import Any

from aks_flex_node.rp.dashboard import differences
from aks_flex_node.rp.dashboard.differences import Line
from aks_flex_node.rp.nodes.around import changed
from aks_flex_node.rp.store.store import Event

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


def write(version: int, before: Document, after: Document, what: str = "update") -> Event:
    """As the service records it."""
    return Event(1.0, "p", what, "/n", detail={"configVersion": str(version), "changed": changed(before, after)})


HISTORY = [write(3, SECOND, THIRD), write(2, FIRST, SECOND), write(1, {}, FIRST, "create")]


def test_what_was_applied_is_found_back_to_the_beginning() -> None:
    for has, expected in (("3", THIRD), ("2", SECOND), ("1", FIRST)):
        found = differences.applied(THIRD, 3, has, HISTORY)
        assert found is not None
        assert found.properties == expected
        assert not found.renewed


def test_an_audit_that_does_not_reach_back_leads_nowhere() -> None:
    assert differences.applied(THIRD, 3, "1", HISTORY[:2]) is None
    assert differences.applied(THIRD, 3, "0", HISTORY) is None
    assert differences.applied(THIRD, 3, "1", []) is None


def test_what_was_refused_has_changed_nothing() -> None:
    refused = Event(1.0, "p", "update", "/n", outcome="denied", detail={"changed": {"versions": [{"x": "y"}, None]}})
    found = differences.applied(THIRD, 3, "2", [refused, *HISTORY])
    assert found is not None
    assert found.properties == SECOND


def test_a_change_of_the_cluster_itself_is_noticed() -> None:
    renewed = Event(2.0, "cluster watch", "update", "/n", detail={"configVersion": "4"})
    found = differences.applied(THIRD, 4, "3", [renewed, *HISTORY])
    assert found is not None
    assert found.renewed
    assert found.properties == THIRD


def test_changes_are_the_smallest_things_that_differ() -> None:
    assert differences.changes({"a": {"x": 1}}, {"a": {"x": 2}, "b": {"y": {"z": []}}}) == {
        ("a", "x"): (1, 2),
        ("b", "y", "z"): (None, []),
    }
    assert differences.changes({"a": {"x": 1}}, {}) == {("a", "x"): (1, None)}
    assert differences.changes({"a": {"x": 1}}, {"a": "text"}) == {("a",): ({"x": 1}, "text")}
    assert differences.changes({}, {"a": {}}) == {("a",): (None, {})}


def test_what_is_changed_and_changed_back_is_as_it_was() -> None:
    forth = {path: new for path, (_, new) in differences.changes(FIRST, THIRD).items()}
    back = {path: old for path, (old, _) in differences.changes(FIRST, THIRD).items()}
    assert differences.changed(FIRST, forth) == THIRD
    assert differences.changed(THIRD, back) == FIRST


def test_to_take_out_what_is_not_there_makes_nothing() -> None:
    assert differences.changed({"a": {"b": 1}}, {("x", "y", "z"): None, ("a", "b", "c"): None}) == {"a": {"b": 1}}


def test_lines_say_what_was_and_what_is() -> None:
    told = differences.lines({"versions": (None, {"runc": "1", "cni": "2"}), "n": ("1", "2"), "old": ([], None)})
    assert told == [
        Line("versions.runc", "", "1"),
        Line("versions.cni", "", "2"),
        Line("n", "1", "2"),
        Line("old", "[]", ""),
    ]
    assert [each.kind for each in told] == ["added", "added", "changed", "removed"]


def test_names_with_dots_are_told_apart() -> None:
    assert differences.name_of(("labels", "example.com/a")) == 'labels."example.com/a"'
