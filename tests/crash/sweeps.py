"""Every point at which a run of the agent can be killed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.crash.crashing import PhotographedHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crash.crashing import Point, SimulatedHost

    Command = Callable[[SimulatedHost], object]
    Copy = Callable[[Path], Path]


def points(run: Command, start: Path, album: Path) -> list[Point]:
    """Machines as a process leaves them that is killed at each point of a run, from the first to the last."""
    album.mkdir()
    host = PhotographedHost(album / "machine", album)
    shutil.copytree(start, host.disk.root, symlinks=True)
    run(host)
    host.take("after the last action")
    return host.points
