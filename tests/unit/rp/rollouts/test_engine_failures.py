"""Tests of what a roll-out takes for a failure, and of how it halts and brings nodes back."""

from __future__ import annotations

import pytest

from aks_flex_rp.rollouts.spec import Share
from aks_flex_rp.rollouts.states import NodeReport, NodeState, Phase, Stage
from aks_flex_rp.rollouts.waits import waits_for
from tests.unit.rp.rollouts.engine_fleet import ALL, ALL_AT_ONCE, AT_ONCE, PLAN, Fleet, gate_of, plan_of, state


def test_wave_needs_a_fresh_report_after_its_soak() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.update_first_node()
    fleet.now += 60
    fleet.rollout.report("n0", NodeReport(desired=2, seen=fleet.now - 1), fleet.now)  # it may be dead since
    assert fleet.step() == []
    assert waits_for(fleet.rollout, fleet.now) == ["n0: a report that it is healthy"]
    fleet.now += 300
    fleet.step()
    assert (fleet.phase, fleet.rollout.state.reason) == (
        Phase.HALTED,
        "n0: It was not seen healthy after its update.",
    )


def test_failure_halts_at_once() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.step()
    fleet.report("n0", failure="containerd does not start")
    assert fleet.step() == []
    assert (fleet.phase, fleet.rollout.state.reason) == (Phase.HALTED, "n0: containerd does not start")
    assert fleet.rollout.state.failed
    assert [each.node for each in fleet.applied] == ["n0"]


def test_failed_node_that_uses_up_the_budget_is_named() -> None:
    fleet = Fleet(plan_of(waves=[ALL], max_unavailable=Share(1), max_failures=1), 3)
    fleet.step()
    fleet.report("n0", failure="containerd does not start", ready=False, unready=True)
    assert fleet.step() == []
    waits = "the budget, which includes n0: failed and not Ready"
    assert waits_for(fleet.rollout, fleet.now) == [f"n1: {waits}", f"n2: {waits}"]


@pytest.mark.parametrize("how", [{"ready": False, "unready": True}, {"offline": True}])
def test_node_that_fails_in_the_soak_reverses_all(how: dict[str, bool]) -> None:
    fleet = Fleet(plan_of(on_failure="reverse"), 6)
    fleet.update_first_node()
    fleet.report("n0", **how)
    begun = fleet.step()
    if how.get("offline"):
        assert (begun, fleet.phase) == ([], Phase.REVERSED)
        fleet.report("n0", applied=True)
        assert fleet.step() == ["n0"]  # when it returns
    fleet.succeed("n0")
    fleet.step()
    assert fleet.phase is Phase.REVERSED
    assert set(fleet.revisions.values()) == {1}
    assert fleet.rollout.is_settled


def test_node_whose_readiness_is_unknown_is_no_failure() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.update_first_node()
    fleet.report("n0", ready=False)  # the API server cannot be reached, for example
    assert fleet.phase is Phase.SOAKING
    fleet.now += 60
    assert fleet.step() == []
    fleet.succeed("n0")
    assert fleet.step() == ["n1"]


def test_node_that_goes_silent_during_its_update_fails_in_time() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.step()
    fleet.report("n0", offline=True, applied=False)
    fleet.now += 299
    assert (fleet.step(), fleet.phase) == ([], Phase.RUNNING)
    fleet.now += 1
    fleet.step()
    assert fleet.rollout.state.reason == "n0: It stopped reporting during its update."


def test_nodes_that_fail_together_are_all_brought_back() -> None:
    plan = plan_of(**AT_ONCE, on_failure="reverse")
    fleet = Fleet(plan, 3)
    fleet.step()
    fleet.report("n0", failure="broken")
    fleet.report("n1", failure="broken")
    fleet.report("n2", offline=True, applied=False)
    fleet.step()
    assert (state(fleet, "n1"), fleet.rollout.state.failures) == (NodeState.REVERSING, 2)
    fleet.succeed("n0", "n1")
    fleet.now += 300
    fleet.step()
    assert fleet.phase is Phase.REVERSED
    fleet.report("n2", applied=False)  # it returns with the revision that failed
    assert fleet.step() == ["n2"]
    fleet.succeed("n2")
    assert (set(fleet.revisions.values()), fleet.rollout.is_settled) == ({1}, True)


def test_wave_whose_nodes_all_failed_gets_others() -> None:
    fleet = Fleet(plan_of(max_failures=1), 6)
    fleet.step()
    fleet.report("n0", failure="broken")
    assert fleet.step() == ["n1"]
    assert (fleet.rollout.state.wave, fleet.rollout.nodes["n1"].wave) == (0, 0)


def test_no_success_if_every_node_failed_within_the_limit() -> None:
    fleet = Fleet(plan_of(max_failures=2), 2)
    for name in fleet.names:
        assert fleet.step() == [name]
        fleet.report(name, failure="broken")
    fleet.step()
    assert (fleet.phase, fleet.rollout.state.reason) == (Phase.HALTED, "No node could be updated.")


def test_machine_that_joins_on_the_revision_has_time_to_become_ready() -> None:
    fleet = Fleet(ALL_AT_ONCE, 2)
    fleet.report("n1", passive=True)
    fleet.update_first_node()
    fleet.report("n1", ready=False, unready=True)
    assert (fleet.phase, state(fleet, "n1")) == (Phase.SOAKING, NodeState.UPDATING)
    fleet.now += 300
    fleet.step()
    assert fleet.rollout.state.reason == "n1: It was not done after 300 s."


def test_gate_that_runs_when_a_node_fails_is_closed() -> None:
    fleet = Fleet(plan_of(soak_seconds=0, gates=[gate_of("job")]), 1)
    fleet.update_first_node()
    fleet.report("n0", ready=False, unready=True)
    [gate] = fleet.rollout.state.gates
    assert (fleet.phase, gate.passed, gate.answered) == (Phase.HALTED, False, fleet.now)
    assert gate.message == "The roll-out ended before it answered."


def test_time_limit_of_a_node_counts_from_the_opening_of_its_window() -> None:
    fleet = Fleet(PLAN, 1)
    fleet.step()
    fleet.report("n0", applied=False, opens=fleet.now + 290)
    fleet.now += 290
    fleet.report("n0", applied=False)  # it begins
    fleet.now += 299
    assert (fleet.step(), fleet.phase) == ([], Phase.RUNNING)
    fleet.now += 1
    fleet.step()
    assert fleet.phase is Phase.HALTED


def test_gate_without_an_answer_fails_in_time() -> None:
    fleet = Fleet(plan_of(soak_seconds=0, gates=[gate_of("job")]), 1)
    fleet.update_first_node()
    fleet.now += 120
    fleet.step()
    assert "no answer within 60 s" in fleet.rollout.state.reason


def test_missing_approval_halts_and_bars_nothing() -> None:
    gate = gate_of("person", approval=True)
    fleet = Fleet(plan_of(soak_seconds=0, gates=[gate], on_failure="reverse"), 2)
    fleet.update_first_node()
    assert waits_for(fleet.rollout, fleet.now) == ["a person: approval of the gate person of wave 1"]
    fleet.now += 60
    fleet.step()
    assert (fleet.phase, fleet.rollout.state.failed, fleet.gates) == (Phase.HALTED, "", [])


def test_what_was_staged_is_taken_back_after_a_halt() -> None:
    fleet = Fleet(plan_of(stage_timeout_seconds=100), 4)
    fleet.step()
    fleet.report("n0", staged=2)
    fleet.step()
    fleet.report("n0", failure="broken")
    fleet.step()
    assert fleet.staged[2:] == [Stage("n1", 0)]


def test_abort_during_a_reversal_stops_it() -> None:
    fleet = Fleet(plan_of(waves=[ALL], max_unavailable=Share(1), max_failures=0), 3)
    fleet.update_first_node()
    fleet.rollout.reverse("a person", fleet.now)
    assert fleet.step() == ["n1"]  # it is being updated, and unavailable already
    fleet.rollout.abort("a person", fleet.now)
    assert (fleet.step(), fleet.phase) == ([], Phase.ABORTED)
    fleet.succeed("n1")
    assert (state(fleet, "n0"), state(fleet, "n1")) == (NodeState.UPDATED, NodeState.REVERSED)


def test_node_that_cannot_be_brought_back_does_not_stop_the_others() -> None:
    plan = plan_of(**AT_ONCE, on_failure="reverse")
    fleet = Fleet(plan, 3)
    fleet.step()
    fleet.succeed("n0", "n1")
    fleet.report("n2", failure="broken")
    fleet.step()
    fleet.report("n0", failure="disk full")
    fleet.succeed("n1", "n2")
    fleet.step()
    assert (fleet.phase, state(fleet, "n1"), state(fleet, "n2")) == (
        Phase.HALTED,
        NodeState.REVERSED,
        NodeState.REVERSED,
    )
    assert "Could not be brought back: n0" in fleet.rollout.state.reason


def test_person_can_try_a_failed_reversal_again() -> None:
    plan = plan_of(**AT_ONCE, on_failure="reverse")
    fleet = Fleet(plan, 1)
    fleet.step()
    fleet.report("n0", failure="broken")
    fleet.step()
    fleet.report("n0", failure="disk full")
    fleet.step()
    assert fleet.rollout.state.phase.is_final
    fleet.rollout.reverse("a person", fleet.now)
    fleet.report("n0", applied=False)
    assert fleet.step() == []  # it was given the revision before already
    fleet.succeed("n0")
    fleet.step()
    assert fleet.phase is Phase.REVERSED


def test_failed_node_that_is_down_counts_as_unavailable() -> None:
    plan = plan_of(waves=[ALL], max_unavailable=Share(1), max_failures=5)
    fleet = Fleet(plan, 3)
    fleet.step()
    fleet.report("n0", failure="broken", ready=False, unready=True)
    assert fleet.step() == []
    fleet.report("n0", failure="broken")
    assert fleet.step() == ["n1"]
