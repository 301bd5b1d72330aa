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


RETAKE_HINT = "Take a new snapshot."


@dataclass(frozen=True)
class Snapshot:
    taken: float  # Unix time
    seconds: float  # duration of the collection
    sections: Mapping[str, Rows]


def parse(text: str) -> Snapshot:
    """Parses the output of the collector."""
    try:
        document = json.loads(text)
        return from_document({"taken": time.time(), **document})
    except (ValueError, TypeError, KeyError) as error:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise LabError(
            "snapshot-failed",
            f"The machine did not return a snapshot. Its last line of output was {last[0][:200]!r}.",
            "Check that the python3 of the machine works.",
        ) from error


def from_document(document: Mapping[str, Any]) -> Snapshot:
    if document["format"] != FORMAT:
        raise UsageError("snapshot-outdated", "Another version of the lab took this snapshot.", RETAKE_HINT)
    return Snapshot(float(document["taken"]), float(document["seconds"]), dict(document["sections"]))


def save(snapshot: Snapshot, path: Path) -> None:
    """Writes a snapshot, readable by its owner only, because it contains command lines and hashes of secrets."""
    document = {"format": FORMAT, **vars(snapshot)}
    write_atomically(path, gzip.compress(json.dumps(document).encode(), compresslevel=3, mtime=0), mode=0o600)


def load(path: Path) -> Snapshot:
    try:
        return from_document(json.loads(gzip.decompress(path.read_bytes())))
    except FileNotFoundError as error:
        raise UsageError(
            "snapshot-not-found", "No snapshot exists to compare with.", "Take a snapshot first."
        ) from error
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
)  # a module imports only earlier ones

# Creates the modules in memory. Nothing is written in the machine, not even bytecode, because a snapshot must not
# change the machine.
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
    """Returns a program for `python3 -` that prints the state of the machine as JSON."""
    return LOADER.format(package=COLLECTOR_PACKAGE, sources=collector_sources())


def collector_sources() -> dict[str, str]:
    here = resources.files(collector)
    return {
        f"{COLLECTOR_PACKAGE}.{part}": (here / f"{part}.py").read_text(encoding="utf-8") for part in COLLECTOR_MODULES
    }
