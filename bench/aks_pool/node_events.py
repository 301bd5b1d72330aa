"""Records what happens to a Node, and reads from it when the Node was deleted and when it was Ready on a version."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.baseline.join import is_ready
from aks_flex_lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_lab.lab import Lab

WATCH_SECONDS = 600


@dataclass(frozen=True)
class NodeEvent:
    """One event of a watch, at the time when the lab received it."""

    at: float
    kind: str  # ADDED, MODIFIED or DELETED
    version: str  # of the kubelet
    is_ready: bool


def parse_event(event: dict[str, Any], at: float) -> NodeEvent:
    node = event["object"]
    version = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
    return NodeEvent(at, event["type"], version.removeprefix("v"), is_ready(node))


def deleted_at(events: Sequence[NodeEvent]) -> float | None:
    """Returns when the Node was deleted first."""
    return next((each.at for each in events if each.kind == "DELETED"), None)


def ready_at(events: Sequence[NodeEvent], version: str) -> float | None:
    """Returns when the Node was first Ready with a kubelet of this version."""
    found = (each.at for each in events if each.kind != "DELETED" and each.is_ready and each.version == version)
    return next(found, None)


class NodeRecorder:
    """Watches a Node in a thread, from before the first event that matters."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self._path = f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{name}"
        self._error: LabError | OSError | None = None
        self.events: list[NodeEvent] = []
        threading.Thread(target=self._record, daemon=True).start()

    def _record(self) -> None:
        try:
            for event in self._lab.watch(self._path, WATCH_SECONDS):
                self.events.append(parse_event(event, time.time()))
        except (LabError, OSError) as error:
            self._error = error

    def wait(self, find: Callable[[Sequence[NodeEvent]], float | None], what: str) -> float:
        """Waits until `find` finds a time in the events, and returns it."""
        end = time.monotonic() + WATCH_SECONDS
        while (at := find(self.events)) is None:
            if self._error:
                raise self._error
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {WATCH_SECONDS} s")
            time.sleep(0.02)
        return at
