"""Life cycle of a node with the agent: join, reboots and other events, unbootstrap without leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.version_mixes import lives

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


# Two more are in tests/long.
@pytest.mark.parametrize(
    "mix", [pytest.param("bookworm-1", marks=pytest.mark.promise), pytest.param("trixie-2", marks=pytest.mark.long)]
)
def test_machine_joins_survives_restarts_and_unbootstraps_cleanly(
    lab: Lab, add_machine: Callable[..., EdgeMachine], mix: str
) -> None:
    lives(lab, add_machine, mix)
