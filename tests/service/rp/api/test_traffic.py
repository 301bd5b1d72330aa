"""Checks all recorded traffic of these tests with Azure's validator. Runs last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from tests.service.rp.api.traffic_recorder import Recording

ROOT = Path(__file__).parents[4]
COLD = 600  # seconds: Node.js and its packages are installed on the first run


def test_recorded_traffic_matches_the_contract(recording: Recording, tmp_path: Path) -> None:
    if not recording.write(tmp_path):
        pytest.skip("there is no traffic: run this with the other tests of the API")

    said = run(ROOT / "scripts" / "contract", "traffic", tmp_path, check=False, timeout=COLD)

    assert said.ok, said.err
