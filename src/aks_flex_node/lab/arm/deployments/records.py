"""The deployments that there were: kept in a file, as ARM's own documents, without any value that is secure."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

Operation = dict[str, Any]
Document = dict[str, Any]
UNFINISHED = frozenset({"Accepted", "Running"})


class Records:
    """By id. One process writes them."""

    def __init__(self, state: Path) -> None:
        self._file = state / "deployments.json"
        for each in self.all():
            if is_unfinished(each):  # nobody goes on with it after a restart
                self.finish(each["id"], {"provisioningState": "Canceled"})

    def all(self) -> list[Document]:
        """The newest first."""
        return [each["document"] for each in reversed(self._read().values())]

    def find(self, deployment: str) -> Document | None:
        kept = self._read().get(deployment.lower())
        return kept["document"] if kept else None

    def operations(self, deployment: str) -> list[Operation]:
        return list(self._read()[deployment.lower()]["operations"])

    def begin(self, document: Document) -> None:
        kept = {key: value for key, value in self._read().items() if key != document["id"].lower()}
        self._write({**kept, document["id"].lower(): {"document": document, "operations": []}})

    def finish(self, deployment: str, properties: dict[str, Any]) -> None:
        kept = self._read()
        kept[deployment.lower()]["document"]["properties"] |= properties
        self._write(kept)

    def tell(self, deployment: str, operation: Operation) -> None:
        kept = self._read()
        kept[deployment.lower()]["operations"].append(operation)
        self._write(kept)

    def remove(self, deployment: str) -> None:
        self._write({key: value for key, value in self._read().items() if key != deployment.lower()})

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def _write(self, kept: dict[str, Any]) -> None:
        write_atomically(self._file, json.dumps(kept, indent=1))


def is_unfinished(document: Document) -> bool:
    return document["properties"]["provisioningState"] in UNFINISHED


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def span(seconds: float) -> str:
    """As ISO 8601 has it."""
    return f"PT{seconds:.3f}S"
