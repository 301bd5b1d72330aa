"""Tests of the decisions of roll-outs: simulated nodes, with failures, absences and windows in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aks_flex_rp.rollouts.engine import Apply, NodeReport, NodeState, Phase, Rollout, RunGate
from aks_flex_rp.rollouts.plan import Domain, OnFailure, PlannedNode, RolloutPlan, Share, plan_waves

PLAN = RolloutPlan(1, 2, (Share(1), Share(percent=50), Share(percent=100)), soak_seconds=60.0, node_seconds=300.0)


@dataclass
class Fleet:
    """Carries out what a roll-out decides, and answers for its nodes."""

    plan: RolloutPlan
    size: int
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    now: float = 1000.0
    applied: list[Apply] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = [PlannedNode(name, self.labels.get(name, {})) for name in self.names]
        label = self.plan.domain.label if self.plan.domain else ""
        domains = {node.name: node.labels.get(label, "") for node in nodes}
        self.rollout = Rollout(self.plan, plan_waves(self.plan, nodes), domains)

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.size)]

    @property
    def revisions(self) -> dict[str, int]:
        found = dict.fromkeys(self.names, self.plan.source)
        return found | {each.node: each.revision for each in self.applied}

    def step(self) -> list[Any]:
        actions = self.rollout.step(self.now)
        self.applied += [each for each in actions if isinstance(each, Apply)]
        return actions

    def succeed(self, name: str) -> None:
        self.rollout.report(name, NodeReport(revision=self.revisions[name]), self.now)

    def run(self, rounds: int = 200) -> None:
        """Lets all nodes succeed until the roll-out ends."""
        for _ in range(rounds):
            self.step()
            if self.rollout.phase.is_final:
                return
            for name in self.names:
                if self.rollout.nodes[name].state.is_busy:
                    self.succeed(name)
            self.now += 60.0


def test_waves_follow_one_another_with_soak() -> None:
    fleet = Fleet(PLAN, 6)
    assert [each.node for each in fleet.step()] == ["n0"]
    fleet.succeed("n0")
    assert fleet.step() == []
    assert fleet.rollout.waits_for(fleet.now) == ["soak time of wave 1, 60 s"]
    fleet.now += 60
    assert [each.node for each in fleet.step()] == ["n1"]
    fleet.run()
    assert fleet.rollout.phase is Phase.DONE
    assert set(fleet.revisions.values()) == {2}


def test_failure_halts_at_once() -> None:
    fleet = Fleet(PLAN, 6)
    fleet.step()
    fleet.rollout.report("n0", NodeReport(failure="containerd does not start"), fleet.now)
    assert fleet.step() == []
    assert (fleet.rollout.phase, fleet.rollout.reason) == (Phase.HALTED, "n0: containerd does not start")
    assert [each.node for each in fleet.applied] == ["n0"]


def test_node_that_stops_being_ready_in_the_soak_reverses_all() -> None:
    plan = RolloutPlan(1, 2, PLAN.waves, soak_seconds=60.0, on_failure=OnFailure.REVERSE)
    fleet = Fleet(plan, 6)
    fleet.step()
    fleet.succeed("n0")
    fleet.step()
    fleet.rollout.report("n0", NodeReport(ready=False, revision=2), fleet.now)
    assert fleet.step() == [Apply("n0", 1)]
    fleet.succeed("n0")
    fleet.step()
    assert fleet.rollout.phase is Phase.REVERSED
    assert set(fleet.revisions.values()) == {1}


def test_offline_nodes_hold_nothing_up() -> None:
    fleet = Fleet(PLAN, 4)
    for name in ("n0", "n3"):
        fleet.rollout.report(name, NodeReport(offline=True), fleet.now)
    fleet.run()
    assert fleet.rollout.phase is Phase.DONE
    assert fleet.revisions == {"n0": 1, "n1": 2, "n2": 2, "n3": 1}
    assert fleet.rollout.waiting == ["n0", "n3"]
    fleet.rollout.report("n3", NodeReport(revision=1), fleet.now)
    assert fleet.step() == [Apply("n3", 2)]
    fleet.succeed("n3")
    assert (fleet.step(), fleet.rollout.waiting) == ([], ["n0"])


def test_gates_run_in_order_and_failure_stops() -> None:
    plan = RolloutPlan(
        1, 2, (Share(percent=100),), soak_seconds=0.0, gates=("job", "query"), max_unavailable=Share(9)
    )
    fleet = Fleet(plan, 2)
    fleet.step()
    for name in fleet.names:
        fleet.succeed(name)
    assert fleet.step() == [RunGate(0, "job")]
    fleet.rollout.gate_answered(0, "job", "", fleet.now)
    assert fleet.step() == [RunGate(0, "query")]
    fleet.rollout.gate_answered(0, "query", "5 errors", fleet.now)
    assert (fleet.rollout.phase, fleet.rollout.reason) == (Phase.HALTED, "The gate query failed: 5 errors")


@pytest.mark.parametrize("paused", [True, False])
def test_paused_roll_out_begins_nothing(paused: bool) -> None:
    fleet = Fleet(PLAN, 4)
    fleet.rollout.paused = paused
    assert bool(fleet.step()) is not paused
    assert fleet.rollout.waits_for(fleet.now)


reports = st.sampled_from(["succeed", "fail", "offline", "online", "not ready", "gone", "window", "nothing"])
plans = st.builds(
    RolloutPlan,
    st.just(1),
    st.just(2),
    st.sampled_from([(Share(1), Share(percent=100)), (Share(percent=100),), (Share(2), Share(3), Share(percent=50))]),
    max_unavailable=st.sampled_from([Share(1), Share(3), Share(percent=50)]),
    domain=st.sampled_from([None, Domain("site", 1)]),
    soak_seconds=st.sampled_from([0.0, 60.0]),
    max_failures=st.integers(0, 2),
    on_failure=st.sampled_from(list(OnFailure)),
    node_seconds=st.just(300.0),
)
events = st.lists(st.tuples(st.integers(0, 7), reports, st.floats(0, 200)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(plans, events)
def test_budgets_hold_and_every_roll_out_ends_or_says_why(plan: RolloutPlan, history: list[Any]) -> None:
    labels = {f"n{number}": {"site": str(number % 2)} for number in range(8)}
    fleet = Fleet(plan, 8, labels)
    rollout = fleet.rollout
    for number, what, seconds in history:
        was_stopped = rollout.phase in {Phase.HALTED, Phase.REVERSING, Phase.REVERSED, Phase.ABORTED}
        begun = [each for each in fleet.step() if isinstance(each, Apply)]
        assert not was_stopped or all(each.revision == 1 for each in begun)
        check_budgets(fleet)
        name = f"n{number}"
        known = {
            "succeed": NodeReport(revision=fleet.revisions[name]),
            "fail": NodeReport(failure="broken"),
            "offline": NodeReport(offline=True),
            "online": NodeReport(revision=1),
            "not ready": NodeReport(ready=False, revision=fleet.revisions[name]),
            "gone": NodeReport(gone=True),
            "window": NodeReport(revision=1, opens=fleet.now + 100),
        }
        if what in known:
            rollout.report(name, known[what], fleet.now)
        fleet.now += seconds
    fleet.step()
    assert rollout.phase.is_final or rollout.waits_for(fleet.now)
    for name in fleet.names:  # the fleet recovers: the roll-out ends
        if not rollout.nodes[name].report.gone:
            rollout.report(name, NodeReport(revision=fleet.revisions[name]), fleet.now)
    fleet.run()
    assert rollout.phase.is_final, rollout.waits_for(fleet.now)


def check_budgets(fleet: Fleet) -> None:
    plan, nodes = fleet.plan, fleet.rollout.nodes.values()
    busy = [node for node in nodes if node.state.is_busy]
    assert len(busy) <= plan.max_unavailable.of(len(nodes))
    if plan.domain:
        domains = [node.domain for node in busy]
        assert max(map(domains.count, domains), default=0) <= plan.domain.max_unavailable
    updating = {node.wave for node in nodes if node.state is NodeState.UPDATING}
    assert fleet.rollout.phase is Phase.REVERSING or all(wave <= fleet.rollout.wave for wave in updating)
