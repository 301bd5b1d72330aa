"""Networks, addresses and VPN gateways of the lab's subscription, kept in a file; each takes its time to be ready."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.files import locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Document = dict[str, Any]
Kept = dict[str, Document]  # by id in lower case: the document, when it is ready, and what is wrong with it


@dataclass(frozen=True)
class Pace:
    """How Azure works: how long a gateway takes, and what goes wrong with the next one."""

    seconds: float = 2.0
    fail: str = ""  # a code: the next change of a gateway ends so


@dataclass(frozen=True)
class Found:
    document: Document
    ready: bool
    fail: str = ""

    @property
    def state(self) -> str:
        if not self.ready:
            return "Updating"
        return "Failed" if self.fail else "Succeeded"

    def shown(self) -> Document:
        properties = {**self.document.get("properties", {}), "provisioningState": self.state}
        return {**self.document, "properties": properties}


class NetworkResources:
    def __init__(self, state: Path) -> None:
        self._file = state / "networks.json"
        self._pace = state / "network-pace.json"
        self._lock = state / "networks.lock"

    @property
    def pace(self) -> Pace:
        return Pace(**json.loads(self._pace.read_text())) if self._pace.exists() else Pace()

    def go_at(self, pace: Pace) -> None:
        write_atomically(self._pace, json.dumps(asdict(pace)))

    def all(self) -> Kept:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def find(self, id: str) -> Found | None:  # noqa: A002 - ARM's own word
        kept = self.all().get(id.lower())
        return _found(kept) if kept else None

    def listed(self, start: str) -> list[Document]:
        """What is directly below a collection's path."""
        below = start.lower().rstrip("/") + "/"
        return [
            _found(kept).shown()
            for id_, kept in self.all().items()
            if id_.startswith(below) and "/" not in id_.removeprefix(below)
        ]

    def put(self, document: Document, seconds: float = 0.0, fail: str = "") -> Found:
        """Replace what has that id; it has another etag then, and is at work for so long."""
        made = {**document, "etag": f'W/"{uuid.uuid4()}"'}
        kept = {"document": made, "ready": time.time() + seconds, "fail": fail}
        self._write(lambda all_: {**all_, str(document["id"]).lower(): kept})
        return _found(kept)

    def remove(self, id: str) -> None:  # noqa: A002
        gone = id.lower()
        self._write(
            lambda all_: {key: kept for key, kept in all_.items() if key != gone and not key.startswith(f"{gone}/")}
        )

    def take_failure(self) -> str:
        """What the next change of a gateway ends with; only that one does."""
        pace = self.pace
        if pace.fail:
            self.go_at(Pace(pace.seconds))
        return pace.fail

    def _write(self, changed: Callable[[Kept], Kept]) -> None:
        with locked(self._lock, "the lab's networks", wait=True):
            write_atomically(self._file, json.dumps(changed(self.all()), indent=1))


def _found(kept: Document) -> Found:
    return Found(kept["document"], time.time() >= kept["ready"], kept["fail"])
