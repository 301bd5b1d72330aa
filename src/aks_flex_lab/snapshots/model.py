"""The snapshot model, its file format, and the script that collects one inside a machine.

Every section has rows, every row has text attributes. The script contains the sources of `collector`.
"""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import LabError, UsageError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.snapshots import collector
from aks_flex_lab.snapshots.collector.main import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TypeAlias

    Row: TypeAlias = Mapping[str, str]
    Rows: TypeAlias = Mapping[str, Row]


RETAKE_HINT = "Take the snapshot again."


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
        raise UsageError("snapshot-outdated", "The snapshot was taken by another version of the lab.", RETAKE_HINT)
    return Snapshot(float(document["taken"]), float(document["seconds"]), dict(document["sections"]))


def save(snapshot: Snapshot, path: Path) -> None:
    """For root alone: command lines and hashes of secrets are nobody else's business."""
    document = {"format": FORMAT, **vars(snapshot)}
    write_atomically(path, gzip.compress(json.dumps(document).encode(), compresslevel=3, mtime=0), mode=0o600)


def load(path: Path) -> Snapshot:
    try:
        return from_document(json.loads(gzip.decompress(path.read_bytes())))
    except FileNotFoundError as error:
        raise UsageError("snapshot-not-found", "There is no snapshot to compare with.", "Take one first.") from error
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise LabError("snapshot-unreadable", f"{path} is not a snapshot: {error}.", RETAKE_HINT) from error


COLLECTOR_PACKAGE = collector.__name__
COLLECTOR_MODULES = (
    "probe",
    "exclusions",
    "file_state",
    "kernel_state",
    "service_state",
    "network_state",
    "main",
)  # imports point left

# Makes modules of the sources in memory. Nothing is written in the machine, no compiled file either: a snapshot must
# not change what it looks at.
LOADER = """\
import sys, types
sys.dont_write_bytecode = True
package = sys.modules[{package!r}] = types.ModuleType({package!r})
package.__path__ = []
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def collector_script() -> str:
    """A program for `python3 -` that prints what it finds as JSON."""
    return LOADER.format(package=COLLECTOR_PACKAGE, sources=collector_sources())


def collector_sources() -> dict[str, str]:
    here = resources.files(collector)
    return {
        f"{COLLECTOR_PACKAGE}.{part}": (here / f"{part}.py").read_text(encoding="utf-8") for part in COLLECTOR_MODULES
    }
