"""Tests of the differences between two snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.snapshots import AttributeChange, Snapshot, SnapshotDifference, diff

if TYPE_CHECKING:
    from aks_flex_lab.snapshots.comparison import ChangeKind
    from aks_flex_lab.snapshots.model import Rows


def snapshot(**sections: Rows) -> Snapshot:
    return Snapshot(taken=0, seconds=0, sections=sections)


FILE = {"type": "file", "mode": "0755", "owner": "0:0", "size": "3", "sha256": "ab"}

# section, rows before, rows after, expected change
CASES: dict[str, tuple[str, Rows, Rows, tuple[str, ChangeKind, list[AttributeChange]]]] = {
    "an extended attribute that came": (
        "file",
        {"/bin/x": FILE},
        {"/bin/x": {**FILE, "xattr user.a": "00"}},
        ("/bin/x", "changed", [AttributeChange("xattr user.a", None, "00")]),
    ),
    "a new unit": (
        "unit",
        {},
        {"a.service": {"enabled": "enabled"}},
        ("a.service", "added", [AttributeChange("enabled", None, "enabled")]),
    ),
    "a mount that is gone": (
        "mount",
        {"/mnt": {"type": "tmpfs"}},
        {},
        ("/mnt", "removed", [AttributeChange("type", "tmpfs", None)]),
    ),
    "a row without attributes": ("route", {}, {"ip default": {}}, ("ip default", "added", [])),
}


@pytest.mark.parametrize("case", CASES)
def test_difference_shows_values_before_and_after(case: str) -> None:
    section, before, after, (key, change, attributes) = CASES[case]

    (found,) = diff(snapshot(**{section: before}), snapshot(**{section: after}))

    assert found == SnapshotDifference(section, key, change, tuple(attributes))


def test_only_rows_are_compared() -> None:
    assert diff(Snapshot(1, 1, {"file": {"/x": FILE}}), Snapshot(2, 2, {"file": {"/x": FILE}, "unit": {}})) == []


def test_differences_are_ordered_by_section_then_key() -> None:
    after = snapshot(file={"/x": {}}, unit={"b": {}, "a": {}})

    assert [(one.section, one.key) for one in diff(snapshot(), after)] == [
        ("file", "/x"),
        ("unit", "a"),
        ("unit", "b"),
    ]
