"""Fixtures: hundreds of simulated machines, on a tmpfs if possible."""

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
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as executor:
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
