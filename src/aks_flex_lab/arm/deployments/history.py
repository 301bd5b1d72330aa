"""The history of deployments, stored in a file as ARM documents without secure values."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_lab.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

OperationDocument = dict[str, Any]
DeploymentDocument = dict[str, Any]
UNFINISHED = frozenset({"Accepted", "Running"})


class DeploymentHistory:
    """Deployments by ID. Only one process writes them."""

    def __init__(self, state: Path) -> None:
        self._file = state / "deployments.json"
        for each in self.all():
            if is_unfinished(each):  # A restart interrupts active deployments.
                self.finish(each["id"], {"provisioningState": "Canceled"})

    def all(self) -> list[DeploymentDocument]:
        """Returns all deployments, the newest first."""
        return [each["document"] for each in reversed(self._read().values())]

    def find(self, deployment: str) -> DeploymentDocument | None:
        entry = self._read().get(deployment.lower())
        return entry["document"] if entry else None

    def operations(self, deployment: str) -> list[OperationDocument]:
        return list(self._read()[deployment.lower()]["operations"])

    def begin(self, document: DeploymentDocument) -> None:
        entries = {key: value for key, value in self._read().items() if key != document["id"].lower()}
        self._write({**entries, document["id"].lower(): {"document": document, "operations": []}})

    def finish(self, deployment: str, properties: dict[str, Any]) -> None:
        entries = self._read()
        entries[deployment.lower()]["document"]["properties"] |= properties
        self._write(entries)

    def add_operation(self, deployment: str, operation: OperationDocument) -> None:
        entries = self._read()
        entries[deployment.lower()]["operations"].append(operation)
        self._write(entries)

    def remove(self, deployment: str) -> None:
        self._write({key: value for key, value in self._read().items() if key != deployment.lower()})

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def _write(self, entries: dict[str, Any]) -> None:
        write_atomically(self._file, json.dumps(entries, indent=1))


def is_unfinished(document: DeploymentDocument) -> bool:
    return document["properties"]["provisioningState"] in UNFINISHED


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def iso_duration(seconds: float) -> str:
    """Returns a duration in ISO 8601 format."""
    return f"PT{seconds:.3f}S"
