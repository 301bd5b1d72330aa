"""Kills a run of the agent at every point, and checks the result of the next run."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from tests.crash import harness
from tests.crash.crash_points import PhotographedHost, SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from tests.crash.crash_points import Point

    Command = Callable[[SimulatedHost], list[str]]  # returns problems; empty on success
    Copy = Callable[[Path], Path]


def points(run: Command, start: Path, album: Path) -> list[Point]:
    """Returns the machine as a process leaves it that is killed at each point of a run."""
    album.mkdir()
    host = PhotographedHost(album / "machine", album)
    shutil.copytree(start, host.disk.root, symlinks=True)
    run(host)
    host.take("after the last action")
    return host.points


def mistakes(
    pool: Executor, killed: Sequence[Point], run: Command, expected: harness.Tree
) -> Iterator[tuple[str, list[str], dict[str, harness.Change]]]:
    """Yields the points after which the next run fails or leaves an unexpected state."""
    assert len(killed) > 20, "There are too few points for this to be a whole run."
    ends = pool.map(partial(end, run), [point.root for point in killed], chunksize=10)
    for point, (words, tree) in zip(killed, ends, strict=True):
        if words or tree != expected:
            yield point.name, words, harness.changes(expected, tree)


def end(run: Command, root: Path) -> tuple[list[str], harness.Tree]:
    """Runs a command on a copy of a machine; returns its output and the state of the copy."""
    copy = shutil.copytree(root, root.with_name(f"{root.name}-copy"), symlinks=True)
    try:
        return run(SimulatedHost(copy)), harness.tree(copy)
    finally:
        shutil.rmtree(copy)
