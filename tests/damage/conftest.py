"""Fixtures: the machines that all cells copy, on a tmpfs if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.damage.matrix import Machines, make_machines
from tests.machine_room import machine_room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    with machine_room() as place:
        yield place


@pytest.fixture(scope="session")
def machines(room: Path) -> Machines:
    return make_machines(room)
