"""Managed nodes with power cuts and concurrent operations: a few here, many in tests/long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.network_cuts import cut_upgrades
from tests.chaos.runner import joined, storm
from tests.chaos.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

CUTS = 1
OPERATIONS = 10


@pytest.mark.promise
def test_update_continues_after_power_cut(lab: Lab, add_machine: Add) -> None:
    chance = seeded(1)
    with joined(lab, [add_machine("cuts-1")]) as (node,):
        cut_upgrades(node, chance, CUTS)


@pytest.mark.long
def test_nodes_reach_desired_state_despite_random_faults(lab: Lab, add_machine: Add) -> None:
    chance = seeded(1)
    machines = [add_machine(f"storm-{number}") for number in (1, 2, 3)]
    with joined(lab, machines) as nodes:
        storm(nodes, chance, OPERATIONS)
