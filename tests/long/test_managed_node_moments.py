"""Two hundred random moments at which the agent of a managed node is killed or its power is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.moments import interrupt, joined_subject, random_cells
from tests.chaos.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

MOMENTS = 50  # of each seed


@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_node_ends_in_desired_state_after_fifty_moments(lab: Lab, add_machine: Add, seed: int) -> None:
    chance = seeded(seed)
    with joined_subject(lab, add_machine(f"moments-{seed}")) as subject:
        interrupt(subject, chance, list(random_cells(chance, MOMENTS)))
