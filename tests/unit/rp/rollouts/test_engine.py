"""Tests of the decisions of roll-outs: simulated nodes, with failures, absences and windows in any order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aks_flex_rp.rollouts.engine import Rollout
from aks_flex_rp.rollouts.plan import (
    FailureDomain,
    OnFailure,
    PlannedGate,
    PlannedNode,
    RolloutPlan,
    Share,
    plan_waves,
)
from aks_flex_rp.rollouts.states import Apply, NodeReport, NodeState, Phase, RolloutNode, RolloutState, RunGate, Stage
from aks_flex_rp.rollouts.waits import waits_for, wakes_at

WAVES = (Share(1), Share(percent=50), Share(percent=100))
PLAN = RolloutPlan(2, WAVES, soak_seconds=60.0, node_seconds=300.0, stage_seconds=0.0, on_failure=OnFailure.HALT)


@dataclass
class Fleet:
    """Carries out what a roll-out decides, and answers for its nodes."""

    plan: RolloutPlan
    size: int
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    now: float = 1000.0
    applied: list[Apply] = field(default_factory=list)
    gates: list[RunGate] = field(default_factory=list)
    staged: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = [PlannedNode(name, self.labels.get(name, {})) for name in self.names]
        domains = {node.name: self.plan.domain_of(node.labels) for node in nodes}
        waves = plan_waves(self.plan, nodes)
        members = [
            RolloutNode(name, number, 1, domain=domains[name], report=NodeReport(desired=1, seen=self.now))
            for number, wave in enumerate(waves)
            for name in wave
        ]
        self.rollout = Rollout(self.plan, members, RolloutState(), self.now)

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.size)]

    @property
    def phase(self) -> Phase:
        return self.rollout.phase

    @property
    def revisions(self) -> dict[str, int]:
        return dict.fromkeys(self.names, 1) | {each.node: each.revision for each in self.applied}

    def step(self) -> list[str]:
        """Returns the names of the nodes that begin."""
        actions = self.rollout.step(self.now)
        begun = [each for each in actions if isinstance(each, Apply)]
        self.applied += begun
        self.gates += [each for each in actions if isinstance(each, RunGate)]
        self.staged += [each for each in actions if isinstance(each, Stage)]
        return [each.node for each in begun]

    def report(self, name: str, **values: Any) -> None:
        known: dict[str, Any] = {"desired": self.revisions[name], "seen": self.now}
        self.rollout.report(name, NodeReport(**{**known, **values}), self.now)

    def succeed(self, *names: str) -> None:
        for name in names:
            self.report(name)

    def restart(self) -> None:
        """Loads the roll-out from what is stored, as another replica does."""
        old = self.rollout
        nodes = [replace(node, report=replace(node.report)) for node in old.nodes.values()]
        self.rollout = Rollout(self.plan, nodes, old.state, self.now)

    def run(self, rounds: int = 200) -> None:
        """Lets all nodes succeed until the roll-out ends."""
        for _ in range(rounds):
            self.step()
            if self.phase.is_final:
                return
            if gate := self.rollout.current_gate:
                self.rollout.gate_answered(gate.wave, gate.gate, self.now, passed=True)
            for name in self.names:
                node = self.rollout.nodes[name]
                if (
                    node.state in {NodeState.UPDATING, NodeState.REVERSING, NodeState.UPDATED}
                    and not node.report.gone
                ):
                    self.succeed(name)
            self.now += 60.0


def state(fleet: Fleet, name: str) -> NodeState:
    return fleet.rollout.nodes[name].state


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


def test_wave_needs_a_fresh_report_after_its_soak() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    fleet.now += 60
    fleet.rollout.report("n0", NodeReport(desired=2, seen=999.0), fleet.now)
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


@pytest.mark.parametrize("how", [{"ready": False, "unready": True}, {"offline": True}])
def test_node_that_fails_in_the_soak_reverses_all(how: dict[str, bool]) -> None:
    fleet = Fleet(replace(PLAN, on_failure=OnFailure.REVERSE), 6)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
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
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
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


def test_windows_are_waited_for() -> None:
    fleet = Fleet(PLAN, 1)
    fleet.report("n0", opens=1500.0)
    assert fleet.step() == []
    [wait] = waits_for(fleet.rollout, fleet.now)
    assert wait == "n0: its maintenance window, which opens at 1970-01-01T00:25:00Z"
    assert wakes_at(fleet.rollout) == 1500.0
    fleet.now = 1500.0
    assert fleet.step() == ["n0"]


def test_window_that_closes_before_the_node_began_is_no_failure() -> None:
    fleet = Fleet(PLAN, 1)
    fleet.step()
    fleet.report("n0", applied=False, opens=90000.0)
    fleet.now += 300
    assert (fleet.step(), fleet.phase) == ([], Phase.RUNNING)


def test_gates_run_in_order_and_failure_stops() -> None:
    gates = (PlannedGate("job", 60.0), PlannedGate("query", 60.0))
    fleet = Fleet(replace(PLAN, waves=(Share(percent=100),), soak_seconds=0.0, gates=gates), 1)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    assert [each.gate for each in fleet.gates] == ["job"]
    fleet.rollout.gate_answered(0, "job", fleet.now, passed=True, message="2 Jobs")
    fleet.rollout.gate_answered(0, "job", fleet.now, passed=False)  # of an earlier run
    fleet.step()
    assert [each.gate for each in fleet.gates] == ["job", "query"]
    fleet.rollout.gate_answered(0, "query", fleet.now, passed=False, message="5 errors")
    assert (fleet.phase, fleet.rollout.state.reason) == (Phase.HALTED, "The gate query of wave 1 failed: 5 errors")


def test_gate_without_an_answer_fails_in_time() -> None:
    fleet = Fleet(replace(PLAN, soak_seconds=0.0, gates=(PlannedGate("job", 60.0),)), 1)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    fleet.now += 120
    fleet.step()
    assert "no answer within 60 s" in fleet.rollout.state.reason


def test_missing_approval_halts_and_bars_nothing() -> None:
    gate = PlannedGate("person", 60.0, needs_approval=True)
    fleet = Fleet(replace(PLAN, soak_seconds=0.0, gates=(gate,), on_failure=OnFailure.REVERSE), 2)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    assert waits_for(fleet.rollout, fleet.now) == ["a person: approval of the gate person of wave 1"]
    fleet.now += 60
    fleet.step()
    assert (fleet.phase, fleet.rollout.state.failed, fleet.gates) == (Phase.HALTED, "", [])


def test_next_wave_is_staged_before_it_begins() -> None:
    fleet = Fleet(replace(PLAN, stage_seconds=100.0), 4)
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


def test_what_was_staged_is_taken_back_after_a_halt() -> None:
    fleet = Fleet(replace(PLAN, stage_seconds=100.0), 4)
    fleet.step()
    fleet.report("n0", staged=2)
    fleet.step()
    fleet.report("n0", failure="broken")
    fleet.step()
    assert fleet.staged[2:] == [Stage("n1", 0)]


def test_abort_during_a_reversal_stops_it() -> None:
    fleet = Fleet(replace(PLAN, waves=(Share(percent=100),), max_unavailable=Share(1), max_failures=0), 3)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    fleet.rollout.reverse("a person", fleet.now)
    assert fleet.step() == ["n1"]  # it is being updated, and unavailable already
    fleet.rollout.abort("a person", fleet.now)
    assert (fleet.step(), fleet.phase) == ([], Phase.ABORTED)
    fleet.succeed("n1")
    assert (state(fleet, "n0"), state(fleet, "n1")) == (NodeState.UPDATED, NodeState.REVERSED)


def test_node_that_cannot_be_brought_back_does_not_stop_the_others() -> None:
    plan = replace(PLAN, waves=(Share(percent=100),), max_unavailable=Share(9), on_failure=OnFailure.REVERSE)
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
    plan = replace(PLAN, waves=(Share(percent=100),), max_unavailable=Share(9), on_failure=OnFailure.REVERSE)
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
    plan = replace(PLAN, waves=(Share(percent=100),), max_unavailable=Share(1), max_failures=5)
    fleet = Fleet(plan, 3)
    fleet.step()
    fleet.report("n0", failure="broken", ready=False, unready=True)
    assert fleet.step() == []
    fleet.report("n0", failure="broken")
    assert fleet.step() == ["n1"]


def test_person_who_gives_a_node_another_revision_takes_it_out() -> None:
    fleet = Fleet(PLAN, 3)
    fleet.step()
    fleet.report("n0", desired=7)
    assert state(fleet, "n0") is NodeState.GONE
    fleet.report("n1", desired=2, applied=False)
    assert state(fleet, "n1") is NodeState.UPDATING


def test_clock_that_was_set_changes_no_wait() -> None:
    fleet = Fleet(PLAN, 3)
    fleet.step()
    fleet.now += 10_000
    fleet.rollout.shift(10_000, fleet.now)
    assert (fleet.step(), fleet.phase) == ([], Phase.RUNNING)


def test_new_node_joins_the_last_wave() -> None:
    fleet = Fleet(PLAN, 3)
    fleet.size = 4
    fleet.rollout.add(RolloutNode("n3", 0, 1, report=NodeReport(desired=1, seen=fleet.now)), fleet.now)
    fleet.run()
    assert fleet.revisions["n3"] == 2


@pytest.mark.parametrize("paused", [True, False])
def test_paused_roll_out_begins_nothing(paused: bool) -> None:
    fleet = Fleet(PLAN, 4)
    fleet.rollout.set_paused(paused)
    assert bool(fleet.step()) is not paused
    assert waits_for(fleet.rollout, fleet.now)


def test_canaries_come_first_and_offline_nodes_last() -> None:
    plan = replace(PLAN, canary={"tier": "canary"})
    nodes = [PlannedNode("a"), PlannedNode("b", {"tier": "canary"}), PlannedNode("c", late=True), PlannedNode("d")]
    assert plan_waves(plan, nodes) == [["b"], ["a"], ["d", "c"]]


HAPPENINGS = (
    *(
        "succeed",
        "fail",
        "offline",
        "online",
        "not ready",
        "unknown",
        "gone",
        "window",
        "paused",
        "staged",
        "by hand",
    ),
    *("nothing", "restart", "pause", "resume", "abort", "reverse", "clock", "gate fails", "gate passes", "new node"),
)
reports = st.sampled_from(HAPPENINGS)
plans = st.builds(
    RolloutPlan,
    st.just(2),
    st.sampled_from(
        [(Share(1), Share(percent=100)), (Share(percent=100),), (Share(2), Share(3), Share(percent=100))]
    ),
    max_unavailable=st.sampled_from([Share(1), Share(3), Share(percent=50)]),
    domain=st.sampled_from([None, FailureDomain("site"), FailureDomain("site", Share(percent=50))]),
    soak_seconds=st.sampled_from([0.0, 60.0]),
    max_failures=st.integers(0, 2),
    on_failure=st.sampled_from(list(OnFailure)),
    node_seconds=st.just(300.0),
    stage_seconds=st.sampled_from([0.0, 100.0]),
    gates=st.sampled_from([(), (PlannedGate("job", 60.0), PlannedGate("person", 600.0, needs_approval=True))]),
)
events = st.lists(st.tuples(st.integers(0, 7), reports, st.floats(0, 200)), max_size=60)
STOPPED = {Phase.HALTED, Phase.REVERSING, Phase.REVERSED, Phase.ABORTED}


@settings(max_examples=400, deadline=None)
@given(plans, events)
def test_budgets_hold_and_every_roll_out_ends_or_says_why(plan: RolloutPlan, history: list[Any]) -> None:
    labels = {f"n{number}": {"site": str(number % 2)} for number in range(8)}
    fleet = Fleet(plan, 8, labels)
    hand: set[str] = set()  # nodes that a person gave the revision, beyond the budget
    for number, what, seconds in history:
        was_stopped = fleet.phase in STOPPED
        before = len(fleet.applied)
        fleet.step()
        assert not was_stopped or all(each.revision == 1 for each in fleet.applied[before:])
        check_budgets(fleet, hand)
        happen(fleet, f"n{number}", what, hand)
        fleet.now += seconds
    fleet.step()
    assert fleet.phase.is_final or waits_for(fleet.rollout, fleet.now)
    fleet.rollout.set_paused(False)
    for name in fleet.names:  # the fleet recovers: the roll-out ends
        if name in fleet.rollout.nodes and not fleet.rollout.nodes[name].report.gone:
            fleet.succeed(name)
    fleet.run()
    assert fleet.phase.is_final, waits_for(fleet.rollout, fleet.now)


def happen(fleet: Fleet, name: str, what: str, hand: set[str]) -> None:
    rollout = fleet.rollout
    known: dict[str, dict[str, Any]] = {
        "succeed": {},
        "fail": {"failure": "broken", "applied": False},
        "offline": {"offline": True},
        "online": {"applied": rollout.nodes[name].report.applied},
        "not ready": {"ready": False, "unready": True},
        "unknown": {"ready": False},
        "gone": {"gone": "It was deleted."},
        "window": {"opens": fleet.now + 100, "applied": False},
        "paused": {"paused": True, "applied": False},
        "staged": {"staged": 2},
    }
    if what in known:
        fleet.report(name, **known[what])
    elif what == "by hand" and not rollout.state.reversing:
        fleet.applied.append(Apply(name, 2))
        hand.add(name)
        fleet.report(name, applied=False)
    elif what == "restart":
        fleet.restart()
    elif what in {"pause", "resume"}:
        rollout.set_paused(what == "pause")
    elif what == "abort":
        rollout.abort("a person", fleet.now)
    elif what == "reverse":
        rollout.reverse("a person", fleet.now)
    elif what == "clock":
        fleet.now += 5000.0
        rollout.shift(5000.0, fleet.now)
    elif what in {"gate fails", "gate passes"} and (gate := rollout.current_gate):
        rollout.gate_answered(gate.wave, gate.gate, fleet.now, passed=what == "gate passes")
    elif what == "new node" and fleet.size == 8:
        fleet.size = 9
        rollout.add(RolloutNode("n8", 0, 1, report=NodeReport(desired=1)), fleet.now)


def check_budgets(fleet: Fleet, hand: set[str]) -> None:
    plan, nodes = fleet.plan, fleet.rollout.nodes.values()
    busy = [node for node in nodes if node.state.is_busy and node.name not in hand]
    assert len(busy) <= plan.max_unavailable.of(len(nodes))
    if plan.domain:
        for domain in {node.domain for node in busy}:
            members = sum(node.domain == domain for node in nodes)
            same = sum(node.domain == domain for node in busy)
            assert same <= plan.domain.max_unavailable.of(members)
    updating = {node.wave for node in nodes if node.state is NodeState.UPDATING and node.name not in hand}
    assert fleet.rollout.state.reversing or all(wave <= fleet.rollout.state.wave for wave in updating)
