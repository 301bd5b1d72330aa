"""The agent completes after a kill at any instant: four instants here, all of them in tests/long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agents import prepare
from tests.e2e import crash_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

SOME = 2  # of a join, and of an unbootstrap


def test_crashed_join_and_unbootstrap_succeed_when_run_again(
    lab: Lab, add_machine: Callable[..., EdgeMachine]
) -> None:
    machine = add_machine("crashes")
    prepare(lab, machine)
    before = machine.snapshot()
    joins, resets = crash_cases.points(machine, "join"), crash_cases.points(machine, "reset")

    pairs = zip(crash_cases.some(SOME, joins, 1), crash_cases.some(SOME, resets, 2), strict=True)
    for join_point, reset_point in pairs:
        crash_cases.join_dies_and_is_run_again(lab, machine, join_point)
        crash_cases.reset_dies_and_is_run_again(machine, reset_point, before)
