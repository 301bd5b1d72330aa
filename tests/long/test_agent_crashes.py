"""Kills the agent at every action, on a lab machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agents import prepare
from tests.e2e import crash_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.mark.timeout(4 * 3600)
def test_join_and_unbootstrap_killed_at_any_point_converge_when_rerun(
    lab: Lab, add_machine: Callable[..., EdgeMachine]
) -> None:
    machine = add_machine("crashes")
    prepare(lab, machine)
    before = machine.snapshot()
    joins, resets = crash_cases.points(machine, "join"), crash_cases.points(machine, "reset")

    # A range of them, to distribute the tests over several labs: AKS_FLEX_CRASH_POINTS=120-240.
    first, _, last = os.environ.get("AKS_FLEX_CRASH_POINTS", "").partition("-")
    for number in range(int(first or 1), int(last or max(joins, resets)) + 1):
        crash_cases.join_dies_and_is_run_again(lab, machine, min(number, joins))
        crash_cases.reset_dies_and_is_run_again(machine, min(number, resets), before)
        print(f"point {number} of {max(joins, resets)}", flush=True)
