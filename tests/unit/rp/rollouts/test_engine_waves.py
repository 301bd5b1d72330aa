"""Tests of what a roll-out does next: waves, offline nodes, windows, gates, downloads, and what people change."""

from __future__ import annotations

import pytest

from aks_flex_rp.rollouts.commands import PlannedNode, plan_waves
from aks_flex_rp.rollouts.spec import Share
from aks_flex_rp.rollouts.states import NodeState, Phase, Stage
from aks_flex_rp.rollouts.waits import waits_for, wakes_at
from tests.unit.rp.rollouts.engine_fleet import ALL, ALL_AT_ONCE, PLAN, Fleet, gate_of, plan_of, state


def test_waves_follow_one_another_with_soak() -> None:
    fleet = Fleet(PLAN, 6)
    assert fleet.step() == ["n0"]
    fleet.succeed("n0")
    assert fleet.step() == []
    assert waits_for(fleet.rollout, fleet.now) == ["the soak time of wave 1"]
    assert wakes_at(fleet.rollout) == 1060.0
    fleet.now += 60
    fleet.succeed("n0")
    assert fleet.step() == ["n1"]
    fleet.run()
    assert fleet.phase is Phase.SUCCEEDED
    assert set(fleet.revisions.values()) == {2}


def test_offline_nodes_hold_nothing_up() -> None:
    fleet = Fleet(PLAN, 4)
    fleet.report("n3", offline=True)
    fleet.run()
    assert fleet.phase is Phase.SUCCEEDED
    assert fleet.revisions == {"n0": 2, "n1": 2, "n2": 2, "n3": 1}
    assert not fleet.rollout.is_settled
    fleet.report("n3")
    assert fleet.step() == ["n3"]
    fleet.succeed("n3")
    assert (fleet.step(), fleet.rollout.is_settled) == ([], True)


def test_wave_of_only_offline_nodes_gets_others() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.report("n0", offline=True)
    assert fleet.step() == ["n1"]
    assert fleet.rollout.nodes["n1"].wave == 0


def test_no_success_without_a_single_update() -> None:
    fleet = Fleet(PLAN, 2)
    for name in fleet.names:
        fleet.report(name, offline=True)
    fleet.step()
    assert fleet.phase is Phase.RUNNING
    assert waits_for(fleet.rollout, fleet.now) == ["n0: it is offline", "n1: it is offline"]
    fleet.report("n1")
    assert fleet.step() == ["n1"]


def test_no_success_if_the_only_updated_node_is_deleted() -> None:
    fleet = Fleet(
        plan_of(
            waves=[
                ALL,
            ]
        ),
        2,
    )
    fleet.report("n1", offline=True)
    fleet.update_first_node()
    fleet.report("n0", gone="It was deleted.")
    fleet.now += 60
    fleet.step()
    assert (fleet.phase, waits_for(fleet.rollout, fleet.now)) == (Phase.RUNNING, ["n1: it is offline"])


def test_restart_after_a_wave_lost_all_its_nodes_to_an_earlier_one() -> None:
    fleet = Fleet(plan_of(stage_timeout_seconds=100, waves=[Share(1), ALL]), 2)
    fleet.report("n0", offline=True)
    fleet.step()
    fleet.report("n1", offline=True)
    fleet.step()
    fleet.restart()
    assert fleet.step() == []
    assert waits_for(fleet.rollout, fleet.now) == ["n0: it is offline", "n1: it is offline"]


def test_node_that_fills_a_wave_is_asked_to_download() -> None:
    fleet = Fleet(plan_of(stage_timeout_seconds=100), 6)
    for name in ("n0", "n1", "n2"):  # this wave and the next one
        fleet.report(name, offline=True)
    fleet.now += 90
    assert fleet.step() == []
    assert Stage("n3", 2) in fleet.staged
    fleet.now += 90
    assert fleet.step() == []  # its time for downloads began when it was asked
    fleet.report("n3", staged=2)
    assert fleet.step() == ["n3"]


def test_node_that_returns_soaks_with_the_wave_that_runs() -> None:
    fleet = Fleet(plan_of(waves=[Share(2), ALL], max_unavailable=Share(9)), 4)
    fleet.report("n1", offline=True)
    fleet.update_first_node()
    fleet.now += 60
    fleet.succeed("n0")
    fleet.report("n1")
    assert sorted(fleet.step()) == ["n1", "n2", "n3"]
    fleet.succeed("n1", "n2", "n3")
    fleet.step()
    fleet.report("n1", ready=False, unready=True)
    assert (fleet.phase, state(fleet, "n1")) == (Phase.HALTED, NodeState.FAILED)


def test_node_without_a_machine_is_given_the_revision_after_a_crash() -> None:
    fleet = Fleet(ALL_AT_ONCE, 2)
    fleet.report("n1", passive=True)
    fleet.crash()
    assert fleet.revisions == {"n0": 2, "n1": 2}


def test_windows_are_waited_for() -> None:
    fleet = Fleet(PLAN, 1)
    fleet.report("n0", opens=1500.0)
    assert fleet.step() == []
    [wait] = waits_for(fleet.rollout, fleet.now)
    assert wait == "n0: its maintenance window, which opens at 1970-01-01T00:25:00Z"
    assert wakes_at(fleet.rollout) == 1500.0
    fleet.now = 1500.0
    assert fleet.step() == ["n0"]


def test_gates_run_in_order_and_failure_stops() -> None:
    gates = [gate_of("job"), gate_of("query")]
    fleet = Fleet(
        plan_of(
            waves=[
                ALL,
            ],
            soak_seconds=0,
            gates=gates,
        ),
        1,
    )
    fleet.update_first_node()
    assert [each.gate for each in fleet.gates] == ["job"]
    fleet.rollout.gate_answered(0, "job", fleet.now, passed=True, message="2 Jobs")
    fleet.rollout.gate_answered(0, "job", fleet.now, passed=False)  # of an earlier run
    fleet.step()
    assert [each.gate for each in fleet.gates] == ["job", "query"]
    fleet.rollout.gate_answered(0, "query", fleet.now, passed=False, message="5 errors")
    assert (fleet.phase, fleet.rollout.state.reason) == (Phase.HALTED, "The gate query of wave 1 failed: 5 errors")


def test_next_wave_is_staged_before_it_begins() -> None:
    fleet = Fleet(plan_of(stage_timeout_seconds=100), 4)
    assert fleet.step() == []
    assert fleet.staged == [Stage("n0", 2), Stage("n1", 2)]  # this wave and the next one
    assert waits_for(fleet.rollout, fleet.now) == ["n0: its downloads"]
    fleet.report("n0", not_staged="no space left")
    assert waits_for(fleet.rollout, fleet.now) == ["n0: its downloads, which failed: no space left"]
    fleet.report("n0", staged=2)
    assert fleet.step() == ["n0"]
    fleet.succeed("n0")
    fleet.step()
    fleet.now += 60
    fleet.succeed("n0")
    assert fleet.step() == []
    fleet.now += 40  # the time for downloads is over: n1 begins without
    assert fleet.step() == ["n1"]


def test_person_who_gives_a_node_another_revision_takes_it_out() -> None:
    fleet = Fleet(PLAN, 3)
    fleet.step()
    fleet.report("n0", desired=7)
    assert state(fleet, "n0") is NodeState.GONE
    fleet.report("n1", desired=2, applied=False)
    assert state(fleet, "n1") is NodeState.UPDATING
    fleet.report("n1", desired=2)
    fleet.report("n1", desired=1)  # back, by hand: it says nothing about the revision any more
    assert state(fleet, "n1") is NodeState.GONE


def test_new_node_joins_the_last_wave() -> None:
    fleet = Fleet(PLAN, 3)
    fleet.size = 4
    fleet.add("n3")
    fleet.run()
    assert fleet.revisions["n3"] == 2


@pytest.mark.parametrize("paused", [True, False])
def test_paused_roll_out_begins_nothing(paused: bool) -> None:
    fleet = Fleet(PLAN, 4)
    fleet.rollout.set_paused(paused)
    assert bool(fleet.step()) is not paused
    assert waits_for(fleet.rollout, fleet.now)


def test_canaries_come_first_and_offline_nodes_last() -> None:
    plan = plan_of(canary_selector={"tier": "canary"})
    nodes = [PlannedNode("a"), PlannedNode("b", {"tier": "canary"}), PlannedNode("c", late=True), PlannedNode("d")]
    assert plan_waves(plan, nodes) == [["b"], ["a"], ["d", "c"]]
