"""Sweeps that are too slow for every change: many moments instead of a few, with a limit and a seed."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.baseline.join import join
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from tests.harness import command, kill_while_coming_up
from tests.lab.host_inspection import OTHER, look
from tests.wait import answers, boot_id, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.machines.machine import EdgeMachine

MOMENTS = [0.15 * step for step in range(1, 61)]  # a start takes six to ten seconds
CUTS = 20


@pytest.mark.timeout(1800)
def test_lab_down_leaves_nothing_after_kill_at_any_moment_of_lab_up() -> None:
    Lab(lab_layout(OTHER)).down()
    before = look()
    for moment in MOMENTS:
        kill_while_coming_up(OTHER, moment)

        command(OTHER, "down")

        assert look().since(before) == {}, f"killed after {moment:.1f} s"


@pytest.mark.timeout(1800)
def test_lab_up_succeeds_after_kill_at_any_moment_of_lab_up() -> None:
    other = Lab(lab_layout(OTHER))
    for moment in MOMENTS[::4]:
        other.down()
        kill_while_coming_up(OTHER, moment)

        command(OTHER, "up")

        assert command(OTHER, "status").ok, f"killed after {moment:.1f} s"
    assert other.down() == []


@pytest.mark.timeout(1800)
def test_node_recovers_from_series_of_power_cuts(lab: Lab, add_machine: Callable[..., EdgeMachine]) -> None:
    chance = random.Random(1)  # noqa: S311 - a seeded series
    machine = add_machine("series")
    join(lab, machine)
    for number in range(CUTS):
        before = boot_id(lab, machine.name)
        machine.power_cycle()
        time.sleep(chance.uniform(0, 3))
        machine.power_cycle()  # again, during the boot
        until(lambda before=before: boot_id(lab, machine.name) != before, f"cut {number}: it reports a new boot")  # type: ignore[misc]
        until(lambda: lab.cluster.node_ready(machine.name), f"cut {number}: the node is Ready")
        until(lambda: answers(lab, machine), f"cut {number}: the pod answers")
