"""Joins with older versions on the newer Debian, and with newer versions on the older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.version_mixes import lives

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.mark.parametrize("mix", ["bookworm-2", "trixie-1"])
def test_version_mix_joins_survives_restarts_and_unbootstraps_cleanly(
    lab: Lab, add_machine: Callable[..., EdgeMachine], mix: str
) -> None:
    lives(lab, add_machine, mix)
