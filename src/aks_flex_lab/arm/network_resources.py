"""Networks, addresses and VPN gateways of the lab's subscription, stored in a file, with provisioning delays."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.documents import Document, JsonFile
from aks_flex_lab.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

# By ID in lower case: the document, the time when it is ready, and its error.
StoredResources = dict[str, Any]


@dataclass(frozen=True)
class NetworkDelays:
    """The provisioning time of gateways, and the injected failure of the next change."""

    seconds: float = 2.0
    fail: str = ""  # error code of the next change of a gateway


@dataclass(frozen=True)
class NetworkResource:
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
        self._stored = JsonFile(state / "networks.json", "the lab's networks", StoredResources)
        self._pace = state / "network-delays.json"

    @property
    def delays(self) -> NetworkDelays:
        return NetworkDelays(**json.loads(self._pace.read_text())) if self._pace.exists() else NetworkDelays()

    def set_delays(self, delays: NetworkDelays) -> None:
        write_atomically(self._pace, json.dumps(asdict(delays)))

    def all(self) -> StoredResources:
        return self._stored.read()

    def find(self, id: str) -> NetworkResource | None:  # noqa: A002 - ARM's own word
        record = self.all().get(id.lower())
        return _network_resource(record) if record else None

    def listed(self, start: str) -> list[NetworkResource]:
        """Returns the resources of a collection."""
        below = start.lower().rstrip("/") + "/"
        return [
            _network_resource(record)
            for id_, record in self.all().items()
            if id_.startswith(below) and "/" not in id_.removeprefix(below)
        ]

    def put(self, document: Document, seconds: float = 0.0, fail: str = "") -> NetworkResource:
        """Stores a resource with a new etag, and marks it as updating for some seconds."""
        made = {**document, "etag": f'W/"{uuid.uuid4()}"'}
        record = {"document": made, "ready": time.time() + seconds, "fail": fail}
        self._stored.update(lambda all_: {**all_, str(document["id"]).lower(): record})
        return _network_resource(record)

    def remove(self, id: str) -> None:  # noqa: A002
        gone = id.lower()
        self._stored.update(
            lambda all_: {
                key: record for key, record in all_.items() if key != gone and not key.startswith(f"{gone}/")
            }
        )

    def take_failure(self) -> str:
        """Returns and removes the injected failure of the next gateway change."""
        pace = self.delays
        if pace.fail:
            self.set_delays(NetworkDelays(pace.seconds))
        return pace.fail


def _network_resource(record: Document) -> NetworkResource:
    return NetworkResource(record["document"], time.time() >= record["ready"], record["fail"])
