"""How far a machine has come on its way into the cluster: five steps, and where it stopped if it did. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.rp.store.store import Event, Node

STEPS = {
    "Created": ("Created", "The node is known here. Now run its join command on the machine."),
    "ConfigFetched": ("Configuration fetched", "The machine has its configuration, and installs what a node needs."),
    "BootstrapAttempted": ("Asked to join", "The machine has asked the cluster to let it in."),
    "Joined": ("In the cluster", "The cluster knows the node, and waits for it to be ready."),
    "Ready": ("Ready", "Pods can run here."),
}
ORDER = tuple(STEPS)
FETCHED = {"configUrl.fetched", "access.granted", "identity.used", "token.used"}


@dataclass(frozen=True)
class Step:
    name: str
    word: str
    progress: Literal["done", "now", "failed", "next"]
    note: str = ""  # what it means to be here; why it failed, and what to try next


def steps(node: Node, status: dict[str, Any], events: Iterable[Event] = ()) -> tuple[Step, ...]:
    """Of a node and its status as they are shown. `events` of its audit tell whether a failed one got anything."""
    failed = status["joinState"] == "Failed"
    reached = _reached(node, status, events) if failed else status["joinState"]
    if reached == "Joined" and _is_ready(status):
        reached = "Ready"
    place = ORDER.index(reached) if reached in STEPS else 0
    failure = str(status.get("joinFailure", "")) if failed else ""
    return tuple(_step(number, place, failed, failure) for number in range(len(ORDER)))


def _step(number: int, place: int, failed: bool, failure: str) -> Step:
    name = ORDER[number]
    word, note = STEPS[name]
    if number < place or name == "Ready" == ORDER[place]:
        return Step(name, word, "done")
    if number == place:
        return Step(name, word, "done" if failed else "now", "" if failed else note)
    return Step(name, word, "failed", failure) if failed and number == place + 1 else Step(name, word, "next")


def _reached(node: Node, status: dict[str, Any], events: Iterable[Event]) -> str:
    """The last step that went well before the one that did not."""
    if "csr" in node.join:
        return "BootstrapAttempted"
    since = float(node.join.get("since", node.created))
    fetched = node.join.get("state") == "ConfigFetched" or "agentVersion" in status
    heard = any(each.what in FETCHED and each.at >= since for each in events)
    return "ConfigFetched" if fetched or heard else "Created"


def _is_ready(status: dict[str, Any]) -> bool:
    return any((each["type"], each["status"]) == ("Ready", "True") for each in status.get("conditions", ()))
