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
    "a mode bit": (
        "file",
        {"/bin/x": FILE},
        {"/bin/x": {**FILE, "mode": "0754"}},
        ("/bin/x", "changed", [AttributeChange("mode", "0755", "0754")]),
    ),
    "an extended attribute that came": (
        "file",
        {"/bin/x": FILE},
        {"/bin/x": {**FILE, "xattr user.a": "00"}},
        ("/bin/x", "changed", [AttributeChange("xattr user.a", None, "00")]),
    ),
    "an extended attribute that went": (
        "file",
        {"/bin/x": {**FILE, "xattr user.a": "00"}},
        {"/bin/x": FILE},
        ("/bin/x", "changed", [AttributeChange("xattr user.a", "00", None)]),
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
    "one more of the same process": (
        "process",
        {"- sleep 9": {"count": "1"}},
        {"- sleep 9": {"count": "2"}},
        ("- sleep 9", "changed", [AttributeChange("count", "1", "2")]),
    ),
    "a row without attributes": ("route", {}, {"ip default": {}}, ("ip default", "added", [])),
}


@pytest.mark.parametrize("case", CASES)
def test_difference_shows_values_before_and_after(case: str) -> None:
    section, before, after, (key, change, attributes) = CASES[case]

    (found,) = diff(snapshot(**{section: before}), snapshot(**{section: after}))

    assert found == SnapshotDifference(section, key, change, tuple(attributes))


def test_equal_snapshots_have_no_differences() -> None:
    same = snapshot(file={"/": {"type": "directory"}, "/x": FILE}, unit={})

    assert diff(same, same) == []


def test_snapshot_times_are_ignored_in_comparison() -> None:
    assert diff(Snapshot(1, 1, {"file": {"/x": FILE}}), Snapshot(2, 2, {"file": {"/x": FILE}})) == []


def test_differences_are_ordered_by_section_then_key() -> None:
    after = snapshot(zebra={"z": {}}, host={"h": {}}, unit={"b": {}, "a": {}}, file={"/x": {}})

    told = [(one.section, one.key) for one in diff(snapshot(), after)]

    assert told == [("file", "/x"), ("unit", "a"), ("unit", "b"), ("host", "h"), ("zebra", "z")]


def test_differences_in_shared_kernel_settings_are_marked() -> None:
    after = snapshot(sysctl={"net.ipv4.ip_forward": {"value": "1"}}, kernel={"kernel.panic": {"value": "10"}})

    assert {one.key: one.shared for one in diff(snapshot(), after)} == {
        "net.ipv4.ip_forward": False,
        "kernel.panic": True,
    }


def test_difference_converts_to_document() -> None:
    found = SnapshotDifference("file", "/x", "changed", (AttributeChange("mode", "0755", "0754"),))

    assert found.document == {
        "section": "file",
        "key": "/x",
        "change": "changed",
        "shared": False,
        "attributes": {"mode": {"before": "0755", "after": "0754"}},
    }
