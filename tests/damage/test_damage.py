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


@pytest.mark.parametrize("cell", sample("repair", COUNT), ids=str)
def test_drift_names_damage_and_repair_removes_it(cell: Cell, judge_of: Callable[[Command], Judge]) -> None:
    assert judge_of(harness.repair).find_problems(cell) == []


@pytest.mark.parametrize("cell", sample("session", COUNT), ids=str)
def test_daemon_starts_and_reports_with_damage(cell: Cell, judge_of: Callable[[Command], Judge]) -> None:
    assert judge_of(harness.session).find_problems(cell) == []


@pytest.mark.parametrize("cell", sample("bootstrap", COUNT), ids=str)
def test_bootstrap_removes_damage(cell: Cell, judge_of: Callable[[Command], Judge]) -> None:
    assert judge_of(harness.bootstrap).find_problems(cell) == []


@pytest.mark.parametrize("cell", sample("update", COUNT), ids=str)
def test_update_removes_damage(cell: Cell, judge_of: Callable[[Command], Judge]) -> None:
    assert judge_of(harness.update).find_problems(cell) == []


@pytest.mark.parametrize("cell", sample("unbootstrap", COUNT), ids=str)
def test_unbootstrap_of_damaged_node_leaves_no_trace(cell: Cell, judge_of: Callable[[Command], Judge]) -> None:
    assert judge_of(harness.unbootstrap).find_problems(cell) == []
