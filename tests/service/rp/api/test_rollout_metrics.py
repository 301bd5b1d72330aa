"""Tests of the metrics of roll-outs, with simulated nodes on both stores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api.simulated_fleet import BAD, BETTER, SimulatedFleet

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running


def measured(service: Running) -> dict[str, float]:
    service.call(service.service._measure())
    text = service.service.metrics.text().decode()
    return {name: float(value) for name, value in re.findall(r"^aks_flex_rp_(\S+) (\S+)$", text, re.MULTILINE)}


def change(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]


@pytest.fixture(autouse=True)
def no_other_roll_outs(service: Running) -> None:
    """Ends what earlier tests have left: their nodes are silent, so their states change by themselves."""
    for each in service.call(service.service.store.active_rollouts()):
        answer = service.admin.pool("POST", each.pool, "rollouts", each.key, "abort", body={})
        assert answer.status in {200, 409}, answer.json  # 409 if it has ended by itself


def test_waiting_roll_out_and_its_nodes_are_counted(service: Running) -> None:
    fleet = SimulatedFleet(service)
    before = measured(service)
    fleet.write(BETTER)
    fleet.start(gates=[{"name": "person", "approval": {}}])
    fleet.work_until("Gates")
    found = measured(service)
    assert change(before, found, 'rollouts{state="Gates"}') == 1
    assert change(before, found, 'rollout_nodes{state="Updated"}') == 1
    assert change(before, found, 'rollout_nodes{state="Pending"}') == 3
    assert change(before, found, "rollout_approvals_pending") == 1
    assert found["rollout_progress_timestamp_seconds"] > 0
    fleet.rollout("POST", "r1", "abort")
    ended = measured(service)
    assert change(before, ended, 'rollouts{state="Aborted"}') == 1
    assert change(before, ended, "rollout_approvals_pending") == 0
    assert change(before, ended, 'rollout_nodes{state="Pending"}') == 0


def test_halted_roll_out_and_barred_revision_are_counted(service: Running) -> None:
    fleet = SimulatedFleet(service)
    before = measured(service)
    fleet.write(BAD)
    fleet.start(onFailure="halt")
    fleet.work_until("Halted")
    found = measured(service)
    assert change(before, found, 'rollouts{state="Halted"}') == 1
    assert change(before, found, "barred_revisions") == 1
    fleet.api.pool("POST", fleet.pool, "allowRevision", body={"revision": 2})
    fleet.write(BETTER)
    fleet.start("r2")
    fleet.work_until("Succeeded", name="r2")
    later = measured(service)
    assert change(before, later, 'rollouts{state="Halted"}') == 0
    assert change(before, later, "barred_revisions") == 0
