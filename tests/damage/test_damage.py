"""A node with any damaged path is repaired, or a command names the problem and what to do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.damage import harness
from tests.damage.matrix import sample
from tests.damage.verdict import Judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.damage.matrix import Cell, Machines
    from tests.damage.verdict import Command

COUNT = 50  # of each axis


@pytest.fixture(scope="session")
def judge_of(machines: Machines, room: Path) -> Callable[[Command], Judge]:
    return cache(lambda command: Judge(command, machines, room))


COMMANDS = {
    "repair": harness.repair,
    "session": harness.session,
    "bootstrap": harness.bootstrap,
    "update": harness.update,
    "unbootstrap": harness.unbootstrap,
}


@pytest.mark.parametrize(
    ("command", "cell"), [(command, cell) for command in COMMANDS for cell in sample(command, COUNT)], ids=str
)
def test_command_on_a_damaged_node_ends_as_on_a_whole_one(
    command: str, cell: Cell, judge_of: Callable[[Command], Judge]
) -> None:
    """Drift detection names the damage, and what only a person can decide is refused with a hint."""
    assert judge_of(COMMANDS[command]).find_problems(cell) == []
