"""What there is to tell when a node is not what it was: pure functions from before and after to news."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.arm.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.rp.notifying.kinds import Kind
    from aks_flex_node.rp.store.store import Document

LONGEST = 1024  # characters of a cause: a message is to tell of it, not to hold a log
REMEDY = (
    "Correct what the cause says. Then run the agent again with the same URL while it lasts, or with a new one from "
    "regenerateToken."
)


@dataclass(frozen=True)
class News:
    kind: Kind
    data: Document = field(default_factory=dict)


def of_status(before: Document, after: Document) -> Iterator[News]:
    """Ready has an event of its own, which is the one that most receivers want; all others come together."""
    changes = list(_changes(_by_type(before), _by_type(after)))
    for change in changes:
        if change["type"] == "Ready":
            yield News("ready.changed", change)
    others = [change for change in changes if change["type"] != "Ready"]
    if others:
        yield News("conditions.changed", {"changes": others})


def of_join(before: Document, after: Document) -> Iterator[News]:
    old, new = before.get("state"), after.get("state")
    if new == "Joined" and old != "Joined":
        yield News("joined")
    elif old == "Joined" and new != "Joined":
        yield News("left")
    if new == "Failed" and (old != "Failed" or before.get("failure") != after.get("failure")):
        cause = str(after.get("failure") or "The node gave no reason.")
        yield News("join.failed", {"cause": _short(cause), "remedy": REMEDY})


def deleted(by: str) -> News:
    return News("deleted", {"by": by})


def silent(last_seen: float) -> News:
    return News("silent", {"lastSeen": iso(last_seen)})


def heard(last_seen: float) -> News:
    return News("heard", {"lastSeen": iso(last_seen)})


def _by_type(status: Document) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


def _changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Another reason for the same status is none. One that goes away was a problem that is over."""
    for kind in dict.fromkeys((*before, *after)):
        absent = {"status": "Unknown" if kind == "Ready" else "False"}
        old, new = before.get(kind, absent), after.get(kind, absent)
        if old["status"] != new["status"]:
            words = {name: _short(new[name]) for name in ("reason", "message") if new.get(name)}
            moment = {"since": new["lastTransitionTime"]} if "lastTransitionTime" in new else {}
            yield {"type": kind, "before": old["status"], "status": new["status"], **words, **moment}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
