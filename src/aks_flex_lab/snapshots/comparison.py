"""Compares two snapshots and renders the differences. A tree that was added or removed is one line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_lab.snapshots.model import Row, Rows, Snapshot


# In the order of the output: disk, processes and units, kernel.
SECTIONS = (
    "file",
    "user",
    "group",
    "unit",
    "process",
    "socket",
    "mount",
    "sysctl",
    "cgroup",
    "link",
    "route",
    "rule",
    "firewall",
    "ipset",
    "host",
    "kernel",
    "module",
    "swap",
)
# All machines of a lab share one kernel, so that another machine may have changed these.
KERNEL_SECTIONS = frozenset({"kernel", "module", "swap"})

ChangeKind = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class AttributeChange:
    """One attribute of a row, before and after; None if it did not exist."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class SnapshotDifference:
    section: str
    key: str
    change: ChangeKind
    attributes: tuple[AttributeChange, ...]

    @property
    def shared(self) -> bool:
        """Whether another machine on the same kernel may have caused the difference."""
        return self.section in KERNEL_SECTIONS

    @property
    def document(self) -> dict[str, Any]:
        attributes = {one.name: {"before": one.before, "after": one.after} for one in self.attributes}
        return {
            "section": self.section,
            "key": self.key,
            "change": self.change,
            "shared": self.shared,
            "attributes": attributes,
        }


def diff(before: Snapshot, after: Snapshot) -> list[SnapshotDifference]:
    """Returns the differences between two snapshots, sorted by section and key."""
    others = sorted({*before.sections, *after.sections} - {*SECTIONS})
    return [
        difference
        for section in (*SECTIONS, *others)
        for difference in diff_rows(section, before.sections.get(section, {}), after.sections.get(section, {}))
    ]


def diff_rows(section: str, before: Rows, after: Rows) -> Iterator[SnapshotDifference]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield SnapshotDifference(
                section, key, change_kind(old, new), tuple(changed_attributes(old or {}, new or {}))
            )


def change_kind(before: Row | None, after: Row | None) -> ChangeKind:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def changed_attributes(before: Row, after: Row) -> Iterator[AttributeChange]:
    """Returns the attributes that differ, in the order of the collector, new ones last."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield AttributeChange(name, before.get(name), after.get(name))


WIDEST_KEY = 60  # longer keys do not widen the column
LONGEST_VALUE = 70
HASH = re.compile(r"[0-9a-f]{64}")
HASH_SHOWN = 12
# Every link has dozens of sysctls.
LINK_SETTINGS = re.compile(r"(net\.[a-z0-9]+\.(?:conf|neigh)\.[^.]+)\..+")
TREES = {"file", "cgroup"}
# The attributes to show for rows that were added or removed; for other sections, all attributes.
SHOWN_ATTRIBUTES = {
    "file": ("type", "mode", "owner", "target"),
    "unit": ("enabled", "active"),
    "mount": ("type", "source"),
    "link": ("kind", "state", "addresses"),
    "user": ("id", "home"),
    "group": ("id",),
}


@dataclass(frozen=True)
class DiffLine:
    section: str
    key: str
    change: str
    detail: str


def render(differences: Sequence[SnapshotDifference]) -> list[str]:
    """Returns one text line for each difference, in columns."""
    lines = list(fold_differences(differences))
    sections = max((len(line.section) for line in lines), default=0)
    keys = min(WIDEST_KEY, max((len(line.key) for line in lines), default=0))
    return [
        f"{line.section:<{sections}}  {line.key:<{keys}}  {line.change:<7}  {line.detail}".rstrip() for line in lines
    ]


def fold_differences(differences: Sequence[SnapshotDifference]) -> Iterator[DiffLine]:
    """Groups rows that were added or removed together under their topmost name."""
    mounts = {one.key for one in differences if one.section == "mount" and one.change != "changed"}
    groups: dict[tuple[str, str, str], list[SnapshotDifference]] = {}
    seen: set[tuple[str, str, str]] = set()
    for one in differences:
        group = (one.section, one.change, top_of(one, seen, mounts))
        groups.setdefault(group, []).append(one)
        seen.add((one.section, one.change, one.key))
    for (_, _, top), members in groups.items():
        yield diff_line(top, members)


def top_of(one: SnapshotDifference, seen: set[tuple[str, str, str]], mounts: set[str]) -> str:
    """Returns the topmost name of a group. Directories precede their contents, so that their top is known."""
    if one.section == "file":
        for directory in parent_directories(one.key):
            if directory in mounts:
                return f"{directory}/*"
    if one.section == "sysctl":
        of_link = LINK_SETTINGS.fullmatch(one.key)
        return f"{of_link.group(1)}.*" if of_link and one.change != "changed" else one.key
    top = one.key
    if one.section in TREES and one.change != "changed":
        for directory in parent_directories(one.key):
            if (one.section, one.change, directory) not in seen:
                break
            top = directory
    return top


def parent_directories(path: str) -> Iterator[str]:
    """Returns the parent directories, the nearest first."""
    directory = path.rpartition("/")[0]
    while directory:
        yield directory
        directory = directory.rpartition("/")[0]


def diff_line(top: str, members: Sequence[SnapshotDifference]) -> DiffLine:
    first = members[0]
    if first.key != top:
        return DiffLine(first.section, printable(top), first.change, f"{len(members)} of them")
    detail = difference_text(first)
    if len(members) > 1:
        detail += f", with {len(members) - 1} below"
    return DiffLine(first.section, printable(top), first.change, detail)


def difference_text(one: SnapshotDifference) -> str:
    if one.change == "changed":
        return ", ".join(
            f"{printable(part.name)} {shown_value(part.before)} -> {shown_value(part.after)}"
            for part in one.attributes
        )
    telling = SHOWN_ATTRIBUTES.get(one.section)
    parts = [part for part in one.attributes if telling is None or part.name in telling]
    return ", ".join(word for word in (attribute_text(part) for part in parts) if word)


def attribute_text(part: AttributeChange) -> str:
    """Returns the text of an attribute of an added or removed row. A count of one is omitted."""
    text = part.after if part.before is None else part.before
    if part.name == "count":
        return "" if text == "1" else f"{text} times"
    return shown_value(text) if part.name not in {"rules", "policy"} else f"{part.name} {shown_value(text)}"


def shown_value(text: str | None) -> str:
    if text is None:
        return "none"
    if HASH.fullmatch(text):
        return text[:HASH_SHOWN]
    return printable(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…") or "empty"


def printable(text: str) -> str:
    """Escapes bytes that are not text, and control characters."""
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in readable)
