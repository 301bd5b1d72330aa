"""Machines, in memory where there is such a file system: hundreds are made, and none outlives the tests."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash import harness
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from tests.crash.crash_points import Point

MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not MEMORY.is_dir():
        yield tmp_path_factory.mktemp("machines")
        return
    with tempfile.TemporaryDirectory(prefix="aks-flex-crash-", dir=MEMORY) as place:
        yield Path(place)


@pytest.fixture(scope="session")
def fresh(room: Path) -> Path:
    """A machine that has never been a node. To be copied, not changed."""
    return harness.seed(room / "fresh")


@pytest.fixture(scope="session")
def joined(room: Path, fresh: Path) -> Path:
    """A machine that has become a node without a crash. To be copied, not changed."""
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
    """As many processes as there are processors: the points have nothing to do with one another."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture
def copy(room: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes copies of a machine, one at a time."""
    place = room / "copy"

    def make(of: Path) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        return Path(shutil.copytree(of, place, symlinks=True))

    yield make
    shutil.rmtree(place, ignore_errors=True)
