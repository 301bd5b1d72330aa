"""What differs between two snapshots: a pure function of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.snapshots.model import Row, Rows, Snapshot

# In the order a person wants to read them: what is on the disk, what runs, what the kernel was told.
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
# All machines of a lab run on one kernel: these may have been changed by another machine.
SHARED = frozenset({"kernel", "module", "swap"})

Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class Attribute:
    """One attribute of a row, before and after; None where there was none."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Difference:
    section: str
    key: str
    change: Change
    attributes: tuple[Attribute, ...]

    @property
    def shared(self) -> bool:
        """Whether it is the kernel's, and so may come from another machine on it."""
        return self.section in SHARED

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


def diff(before: Snapshot, after: Snapshot) -> list[Difference]:
    """Everything that is not as it was, section by section, by key."""
    others = sorted({*before.sections, *after.sections} - {*SECTIONS})
    return [
        difference
        for section in (*SECTIONS, *others)
        for difference in diff_rows(section, before.sections.get(section, {}), after.sections.get(section, {}))
    ]


def diff_rows(section: str, before: Rows, after: Rows) -> Iterator[Difference]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield Difference(section, key, change(old, new), tuple(attributes(old or {}, new or {})))


def change(before: Row | None, after: Row | None) -> Change:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def attributes(before: Row, after: Row) -> Iterator[Attribute]:
    """Those that differ, in the order the collector tells them; new ones last."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Attribute(name, before.get(name), after.get(name))
