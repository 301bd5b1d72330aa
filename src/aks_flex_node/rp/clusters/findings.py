"""What looking at a cluster finds, for a person to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    level: Literal["ok", "warning", "problem"]
    what: str
    why: str
