"""Fixtures: hundreds of simulated machines, on a tmpfs if possible."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash import action_trace, harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import points
from tests.machine_room import machine_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from tests.crash.crash_points import Point


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    with machine_room() as place:
        yield place


@pytest.fixture(scope="session")
def fresh(room: Path) -> Path:
    """Returns a machine that was never a node. Tests copy it and do not change it."""
    return harness.seed(room / "fresh")


@pytest.fixture(scope="session")
def joined(room: Path, fresh: Path) -> Path:
    """Returns a machine that joined without a crash. Tests copy it and do not change it."""
    shutil.copytree(fresh, room / "joined", symlinks=True)
    harness.join(SimulatedHost(room / "joined"))
    return room / "joined"


@pytest.fixture(scope="session")
def killed_joins(room: Path, fresh: Path) -> list[Point]:
    return points(harness.join, fresh, room / "killed-joins")


@pytest.fixture(scope="session")
def killed_resets(room: Path, joined: Path) -> list[Point]:
    return points(harness.reset, joined, room / "killed-resets")


@pytest.fixture(scope="session")
def pool() -> Iterator[Executor]:
    """Yields a process pool with one process for each CPU; crash points are independent."""
    with ProcessPoolExecutor(
        mp_context=get_context("spawn"),
        initializer=action_trace.share_contents,
        initargs=(action_trace.CONTENTS,),
    ) as executor:
        yield executor


@pytest.fixture
def copy(room: Path) -> Iterator[Callable[[Path], Path]]:
    """Yields a function that copies a machine; only one copy exists at a time."""
    place = room / "copy"

    def make(of: Path) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        return Path(shutil.copytree(of, place, symlinks=True))

    yield make
    shutil.rmtree(place, ignore_errors=True)
