"""Many power cuts during upgrades, and many concurrent operations on several nodes."""

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

CUTS = 20
OPERATIONS = 200


@pytest.mark.timeout(3600)
def test_updates_complete_despite_twenty_power_cuts(lab: Lab, add_machine: Add) -> None:
    chance = seeded(2)
    with joined(lab, [add_machine("cuts-1")]) as (node,):
        cut_upgrades(node, chance, CUTS)


@pytest.mark.timeout(3600)
def test_nodes_reach_desired_state_after_two_hundred_operations(lab: Lab, add_machine: Add) -> None:
    chance = seeded(2)
    machines = [add_machine(f"storm-{number}") for number in (1, 2, 3)]
    with joined(lab, machines) as nodes:
        storm(nodes, chance, OPERATIONS)
