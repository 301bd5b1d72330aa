"""Tests of roll-outs over HTTP, with simulated nodes on both stores: waves, halt and reversal, bars, people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api.simulated_fleet import BAD, BETTER, GOOD, SimulatedFleet
from tests.wait import until

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running


@pytest.fixture
def fleet(service: Running) -> SimulatedFleet:
    return SimulatedFleet(service)


def test_bad_revision_touches_one_wave_and_comes_back(fleet: SimulatedFleet) -> None:
    fleet.write(BAD)
    fleet.start()
    found = fleet.work_until("Reversed")
    assert found["reason"] == f"{fleet.names[0]}: containerd does not start."
    assert {name for name, _ in fleet.given} == {fleet.names[0]}
    assert set(fleet.revisions().values()) == {1}
    shown = fleet.api.pool("GET", fleet.pool).properties
    assert [each["revision"] for each in shown["barredRevisions"]] == [2]
    fleet.start("r2").assert_refused(409, "RevisionBarred")
    fleet.write({**BAD, "versions": {"npd": "v1.35.0"}})  # another revision with the same value
    assert fleet.start("r2").error["code"] == "RevisionBarred"
    own = {"properties": {"poolName": fleet.pool, "nodeConfig": {"maxPods": 13}}}
    assert fleet.api.put(fleet.names[1], own).error["code"] == "RevisionBarred"
    allowed = fleet.api.pool("POST", fleet.pool, "allowRevision", body={"revision": 2})
    assert allowed.properties["barredRevisions"] == []
    assert fleet.start("r2").status == 201


def test_only_one_roll_out_of_a_pool_is_active(fleet: SimulatedFleet) -> None:
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    fleet.start()
    assert fleet.start("r2").error["code"] == "RolloutActive"
    assert fleet.api.pool("POST", fleet.pool, "apply", body={}).error["code"] == "RolloutActive"
    assert fleet.start("r2", replaceActive=True).status == 201
    assert fleet.shown("r1")["state"] == "Aborted"
    fleet.stuck.clear()
    fleet.work_until("Succeeded", name="r2")


def test_new_nodes_start_on_the_stable_revision(fleet: SimulatedFleet) -> None:
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    fleet.start()
    new = f"{fleet.pool}-new"
    made = fleet.api.put(new, {"properties": {"poolName": fleet.pool}})
    assert made.properties["poolRevision"] == 1
    fleet.stuck.clear()
    fleet.work_until("Succeeded")
    assert fleet.api.put(f"{new}2", {"properties": {"poolName": fleet.pool}}).properties["poolRevision"] == 2


def test_downgrade_that_is_allowed_is_staged_as_such(fleet: SimulatedFleet) -> None:
    fleet.write({**BETTER, "versions": {"containerd": "1.7.29"}})
    fleet.start(stageTimeoutSeconds=600, allowDowngrade=True)
    first = fleet.names[0]
    until(lambda: "nextConfig" in fleet.api.get(first).properties, "the canary downloads ahead", 10)
    config = fleet.api.get(first).properties["nextConfig"]["config"]
    assert config["updatePolicy"]["allowDowngrade"]
    fleet.work_until("Succeeded")


def test_downgrade_that_is_not_allowed_is_refused_before_it_begins(fleet: SimulatedFleet) -> None:
    fleet.write({**BETTER, "versions": {"containerd": "1.7.29"}})
    answer = fleet.start()
    assert answer.status == 400
    assert answer.error["target"] == "properties.allowDowngrade"
    assert "has containerd 1.7.29, which is older than 2." in answer.error["message"]
    assert fleet.rollout("GET").status == 404
    assert fleet.start(allowDowngrade=True).status == 201
    fleet.work_until("Succeeded")


def test_roll_out_that_is_refused_does_not_end_the_active_one(fleet: SimulatedFleet) -> None:
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    fleet.start()
    fleet.write({**BETTER, "versions": {"containerd": "1.7.29"}})
    assert fleet.start("r2", replaceActive=True).status == 400
    assert fleet.shown()["state"] == "Running"
    fleet.stuck.clear()
    fleet.work_until("Succeeded")


def test_node_without_a_machine_is_given_the_revision_at_the_end(service: Running) -> None:
    fleet = SimulatedFleet(service, 1)
    waiting = f"{fleet.pool}-waiting"
    assert fleet.api.put(waiting, {"properties": {"poolName": fleet.pool}}).status == 201
    fleet.write(BETTER)
    fleet.start()
    fleet.work_until("Succeeded")
    assert fleet.states()[waiting] == "Updated"
    until(lambda: fleet.api.get(waiting).properties["poolRevision"] == 2, "it has the revision", 10)


def test_roll_out_without_nodes_to_update_succeeds(fleet: SimulatedFleet) -> None:
    fleet.write(GOOD)
    assert fleet.start().status == 201
    assert fleet.work_until("Succeeded")["waveProgress"] == []


def measured(service: Running) -> dict[str, float]:
    service.call(service.service._measure())
    text = service.service.metrics.text().decode()
    return {name: float(value) for name, value in re.findall(r"^aks_flex_rp_(\S+) (\S+)$", text, re.MULTILINE)}


def change(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]


@pytest.fixture(autouse=True)
def no_other_roll_outs(service: Running) -> None:
    """Ends what earlier tests have left: their nodes are silent, so their states change by themselves."""
    for each in service.call(service.store.active_rollouts()):
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
