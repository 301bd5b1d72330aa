"""The agent is killed, or the power is cut, at random moments: every operation here, 200 moments in tests/long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.moments import every_cell, interrupt, joined_subject
from tests.chaos.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]


def test_node_ends_in_desired_state_after_every_disruption(lab: Lab, add_machine: Add) -> None:
    chance = seeded(1)
    with joined_subject(lab, add_machine("moments-1")) as subject:
        interrupt(subject, chance, list(every_cell(chance)))
