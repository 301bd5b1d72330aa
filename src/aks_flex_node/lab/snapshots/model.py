"""A snapshot: all that makes a machine what it is, in one shape, and how it is kept.

Every section has rows, every row has attributes, and all of them are texts. So one function can compare a file's mode
with a unit's state, and a new section needs no new code here.
"""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.errors import LabError, UsageError
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.snapshots.inside.collector import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TypeAlias

    Row: TypeAlias = Mapping[str, str]
    Rows: TypeAlias = Mapping[str, Row]

AGAIN = "Take the snapshot again."


@dataclass(frozen=True)
class Snapshot:
    taken: float  # unix time
    seconds: float  # how long the look took
    sections: Mapping[str, Rows]

    @property
    def rows(self) -> int:
        return sum(len(rows) for rows in self.sections.values())


def parse(text: str) -> Snapshot:
    """What the collector printed inside the machine."""
    try:
        document = json.loads(text)
        return from_document({"taken": time.time(), **document})
    except (ValueError, TypeError, KeyError) as error:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise LabError(
            "snapshot-failed",
            f"The machine did not tell what it is; the last it said was {last[0][:200]!r}.",
            "Look whether it is up and has python3.",
        ) from error


def from_document(document: Mapping[str, Any]) -> Snapshot:
    if document["format"] != FORMAT:
        raise UsageError("snapshot-outdated", "The snapshot was taken by another version of the lab.", AGAIN)
    return Snapshot(float(document["taken"]), float(document["seconds"]), dict(document["sections"]))


def save(snapshot: Snapshot, path: Path) -> None:
    """For root alone: command lines and hashes of secrets are nobody else's business."""
    document = {"format": FORMAT, **vars(snapshot)}
    write_atomically(path, gzip.compress(json.dumps(document).encode(), compresslevel=3, mtime=0), mode=0o600)


def load(path: Path) -> Snapshot:
    try:
        return from_document(json.loads(gzip.decompress(path.read_bytes())))
    except FileNotFoundError as error:
        raise UsageError("snapshot-missing", "There is no snapshot to compare with.", "Take one first.") from error
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise LabError("snapshot-unreadable", f"{path} is not a snapshot: {error}.", AGAIN) from error
