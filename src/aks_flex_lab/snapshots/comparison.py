"""Compares two snapshots and renders the differences. A tree that was added or removed is one line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aks_flex_lab.snapshots.model import Row, Snapshot


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
    """Returns the differences between two snapshots, by section and sorted by key."""
    found = []
    for section in dict.fromkeys((*before.sections, *after.sections)):
        old_rows, new_rows = before.sections.get(section, {}), after.sections.get(section, {})
        for key in sorted({*old_rows, *new_rows}):
            old, new = old_rows.get(key), new_rows.get(key)
            if old != new:
                change: ChangeKind = "added" if old is None else "removed" if new is None else "changed"
                found.append(SnapshotDifference(section, key, change, tuple(_changes(old or {}, new or {}))))
    return found


def _changes(before: Row, after: Row) -> Iterator[AttributeChange]:
    """Yields the attributes that differ, in the order of the collector, new ones last."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield AttributeChange(name, before.get(name), after.get(name))


WIDEST_KEY = 60  # longer keys do not widen the column
LONGEST_VALUE = 70
HASH = re.compile(r"[0-9a-f]{64}")
HASH_SHOWN = 12
# Every link has dozens of sysctls.
LINK_SETTINGS = re.compile(r"(net\.[a-z0-9]+\.(?:conf|neigh)\.[^.]+)\..+")


def render(differences: Sequence[SnapshotDifference]) -> list[str]:
    """Returns one text line for each difference, in columns. A tree that was added or removed is one line."""
    trees: dict[tuple[str, str, str], list[SnapshotDifference]] = {}
    for one in differences:
        trees.setdefault((one.section, _top(one, trees), one.change), []).append(one)
    sections = max((len(section) for section, _, _ in trees), default=0)
    keys = min(WIDEST_KEY, max((len(printable(top)) for _, top, _ in trees), default=0))
    lines = []
    for (section, top, change), members in trees.items():
        below = f", with {len(members) - 1} below" if len(members) > 1 else ""
        detail = f"{difference_text(members[0])}{below}".lstrip(", ")
        lines.append(f"{section:<{sections}}  {printable(top):<{keys}}  {change:<7}  {detail}".rstrip())
    return lines


def _top(one: SnapshotDifference, trees: Mapping[tuple[str, str, str], object]) -> str:
    """Returns the name of the tree of a difference. Directories precede their contents, so that it is known."""
    if one.change == "changed":
        return one.key
    if of_link := LINK_SETTINGS.fullmatch(one.key):
        return f"{of_link[1]}.*"
    parent = one.key
    while parent := parent.rpartition("/")[0]:
        if (one.section, parent, one.change) in trees:
            return parent
    return one.key


def difference_text(one: SnapshotDifference) -> str:
    if one.change == "changed":
        changes = (
            (printable(part.name), shown_value(part.before), shown_value(part.after)) for part in one.attributes
        )
        return ", ".join(f"{name} {before} -> {after}" for name, before, after in changes)
    return ", ".join(shown_value(part.after if part.before is None else part.before) for part in one.attributes)


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
