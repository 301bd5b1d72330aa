"""Records the last runs of the suite in the user's cache, with the unsteady tests of each.

A test is unsteady when it fails in parallel with other tests and passes alone. One such failure is noise under load;
two within the last ten runs are a defect of the test or of the code, and fail the suite.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

KEPT_RUNS = 10
MAX_UNSTEADY_RUNS = 1  # allowed number of runs in the history; with more, the suite fails
LOCATION = "AKS_FLEX_RUN_HISTORY"  # environment variable with the path of another file


def history_file() -> Path:
    named = os.environ.get(LOCATION)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "aks-flex-node" / "test-runs.json"


def load_runs(path: Path) -> list[list[str]]:
    """Returns the unsteady tests of each run, oldest first. An unreadable file counts as empty."""
    try:
        runs = json.loads(path.read_text())["runs"]
        return [[str(test) for test in run["unsteady"]] for run in runs][-KEPT_RUNS:]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def record_run(path: Path, unsteady: list[str]) -> dict[str, int]:
    """Adds a run, and returns the tests that were unsteady too often, with their counts."""
    runs = [*load_runs(path), sorted(unsteady)][-KEPT_RUNS:]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    documents = [{"unsteady": run} for run in runs]
    partial.write_text(json.dumps({"written": int(time.time()), "runs": documents}, indent=1) + "\n")
    partial.replace(path)
    counts = Counter(test for run in runs for test in run)
    return {test: count for test, count in sorted(counts.items()) if count > MAX_UNSTEADY_RUNS}
