"""Differences as short, aligned lines for a person. A whole tree that came or went is one line with a count."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.lab.snapshots.differences import Attribute, Difference

WIDEST_KEY = 60  # a longer key does not push the rest of its table to the right
LONGEST_VALUE = 70
HASH = re.compile(r"[0-9a-f]{64}")
HASH_SHOWN = 12
# Every link brings dozens of settings of its own.
LINK_SETTINGS = re.compile(r"(net\.[a-z0-9]+\.(?:conf|neigh)\.[^.]+)\..+")
TREES = {"file", "cgroup"}
# What a person wants to know of something that came or went; of other sections, all there is.
TELLING = {
    "file": ("type", "mode", "owner", "target"),
    "unit": ("enabled", "active"),
    "mount": ("type", "source"),
    "link": ("kind", "state", "addresses"),
    "user": ("id", "home"),
    "group": ("id",),
}


@dataclass(frozen=True)
class Line:
    section: str
    key: str
    change: str
    detail: str


def render(differences: Sequence[Difference]) -> list[str]:
    """One text line each, in columns."""
    lines = list(fold(differences))
    sections = max((len(line.section) for line in lines), default=0)
    keys = min(WIDEST_KEY, max((len(line.key) for line in lines), default=0))
    return [
        f"{line.section:<{sections}}  {line.key:<{keys}}  {line.change:<7}  {line.detail}".rstrip() for line in lines
    ]


def fold(differences: Sequence[Difference]) -> Iterator[Line]:
    """Bring together what came or went together, under its topmost name."""
    mounts = {one.key for one in differences if one.section == "mount" and one.change != "changed"}
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    seen: set[tuple[str, str, str]] = set()
    for one in differences:
        group = (one.section, one.change, top_of(one, seen, mounts))
        groups.setdefault(group, []).append(one)
        seen.add((one.section, one.change, one.key))
    for (_, _, top), members in groups.items():
        yield line(top, members)


def top_of(one: Difference, seen: set[tuple[str, str, str]], mounts: set[str]) -> str:
    """The name to show it under. Directories come before what is in them, so their own top is known already."""
    if one.section == "file":
        for place in parents(one.key):
            if place in mounts:
                return f"{place}/*"
    if one.section == "sysctl":
        of_link = LINK_SETTINGS.fullmatch(one.key)
        return f"{of_link.group(1)}.*" if of_link and one.change != "changed" else one.key
    top = one.key
    if one.section in TREES and one.change != "changed":
        for place in parents(one.key):
            if (one.section, one.change, place) not in seen:
                break
            top = place
    return top


def parents(path: str) -> Iterator[str]:
    """The directories above, the nearest first."""
    place = path.rpartition("/")[0]
    while place:
        yield place
        place = place.rpartition("/")[0]


def line(top: str, members: Sequence[Difference]) -> Line:
    first = members[0]
    if first.key != top:
        return Line(first.section, shown(top), first.change, f"{len(members)} of them")
    detail = summary(first)
    if len(members) > 1:
        detail += f", with {len(members) - 1} below"
    return Line(first.section, shown(top), first.change, detail)


def summary(one: Difference) -> str:
    if one.change == "changed":
        return ", ".join(f"{shown(part.name)} {value(part.before)} -> {value(part.after)}" for part in one.attributes)
    telling = TELLING.get(one.section)
    parts = [part for part in one.attributes if telling is None or part.name in telling]
    return ", ".join(word for word in (presence(part) for part in parts) if word)


def presence(part: Attribute) -> str:
    """An attribute of what came or went. A single one of a kind needs no count."""
    text = part.after if part.before is None else part.before
    if part.name == "count":
        return "" if text == "1" else f"{text} times"
    return value(text) if part.name not in {"rules", "policy"} else f"{part.name} {value(text)}"


def value(text: str | None) -> str:
    if text is None:
        return "none"
    if HASH.fullmatch(text):
        return text[:HASH_SHOWN]
    return shown(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…") or "empty"


def shown(text: str) -> str:
    """Names are bytes: what is no text, or would move the cursor, is written out."""
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in readable)
