"""Every point at which a run of the agent can be killed, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.host.actions import MakeLink, PlaceTree, RemoveTree, WriteFile
from tests.crash.crashing import Crash, CrashingHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.crash.crashing import When

    Command = Callable[[CrashingHost], object]
    Copy = Callable[[Path], Path]

HAVE_A_MIDDLE = (WriteFile, MakeLink, PlaceTree, RemoveTree)  # all others are one system call, or one program


def crashes(run: Command, start: Path, copy: Copy, when: When, least: int = 50) -> Iterator[tuple[str, Path]]:
    """A copy of a machine for each action of a run on it, left there by a process that was killed at that action."""
    whole = CrashingHost(copy(start))
    run(whole)
    assert len(whole.done) > least, "There are too few actions for this to be a whole run."
    for number, action in enumerate(whole.done, 1):
        if when == "amid" and not isinstance(action, HAVE_A_MIDDLE):
            continue
        root = copy(start)
        killed = _killed(run, CrashingHost(root, number, when))
        yield f"{when} action {number} of {len(whole.done)}: {killed}", root


def _killed(run: Command, host: CrashingHost) -> str:
    try:
        run(host)
    except Crash as crash:
        return str(crash)
    raise AssertionError("The run came to its end before the action at which it was to be killed.")
