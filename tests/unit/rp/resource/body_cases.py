"""Request bodies and their expected errors, one small file for each case; the service's tests send the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aks_flex_rp.resource.rules import ValidationContext

BODIES = Path(__file__).parent / "bodies"
CLUSTER_VERSION = "1.34.4"
NAME = "edge-1"  # as in the returned body


@dataclass(frozen=True)
class Case:
    name: str
    about: str  # a sentence for the reader of the file
    body: dict[str, Any]
    targets: tuple[str, ...] = ()
    around: dict[str, Any] = field(default_factory=dict)  # differences from a new node
    agent: bool = True  # whether an agent accepts it on any machine

    @property
    def beside(self) -> ValidationContext:
        return ValidationContext(**{"cluster_version": CLUSTER_VERSION, "accepts_entra": True, **self.around})

    def __str__(self) -> str:
        return self.name


def cases(kind: str) -> list[Case]:
    return [_read(file) for file in sorted((BODIES / kind).glob("*.json"))]


def _read(file: Path) -> Case:
    document = json.loads(file.read_text())
    return Case(file.stem, **{**document, "targets": tuple(document.get("targets", ()))})
