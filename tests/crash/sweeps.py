"""Every point at which a run of the agent can be killed, and what another run makes of each."""

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

    Command = Callable[[SimulatedHost], list[str]]  # what it says in the end: nothing, when all went well
    Copy = Callable[[Path], Path]


def points(run: Command, start: Path, album: Path) -> list[Point]:
    """Machines as a process leaves them that is killed at each point of a run, from the first to the last."""
    album.mkdir()
    host = PhotographedHost(album / "machine", album)
    shutil.copytree(start, host.disk.root, symlinks=True)
    run(host)
    host.take("after the last action")
    return host.points


def mistakes(
    pool: Executor, killed: Sequence[Point], run: Command, expected: harness.Tree
) -> Iterator[tuple[str, list[str], dict[str, harness.Change]]]:
    """The points after which a run does not end well or leaves something else than what is expected."""
    assert len(killed) > 20, "There are too few points for this to be a whole run."
    ends = pool.map(partial(end, run), [point.root for point in killed], chunksize=10)
    for point, (words, tree) in zip(killed, ends, strict=True):
        if words or tree != expected:
            yield point.name, words, harness.changes(expected, tree)


def end(run: Command, root: Path) -> tuple[list[str], harness.Tree]:
    """What a run says on a copy of a machine, and the copy as it is then."""
    copy = shutil.copytree(root, root.with_name(f"{root.name}-copy"), symlinks=True)
    try:
        return run(SimulatedHost(copy)), harness.tree(copy)
    finally:
        shutil.rmtree(copy)
