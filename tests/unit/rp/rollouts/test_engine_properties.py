"""Property test of roll-outs: any sequence of reports, failures, restarts, people and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aks_flex_rp.rollouts.spec import FailureDomainSpec, RolloutProperties, Share
from aks_flex_rp.rollouts.states import Apply, NodeState, Phase, RolloutState
from aks_flex_rp.rollouts.waits import waits_for
from tests.unit.rp.rollouts.engine_fleet import ALL, Fleet, gate_of, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "other revision",
        "no machine",
    ),
    *(
        "nothing",
        "restart",
        "crash",
        "pause",
        "resume",
        "abort",
        "reverse",
        "clock",
        "gate fails",
        "gate passes",
        "new node",
    ),
)
reports = st.sampled_from(HAPPENINGS)


def domain(**limit: str) -> FailureDomainSpec:
    return FailureDomainSpec.model_validate({"label": "site", **limit})


plans = st.builds(
    plan_of,
    waves=st.sampled_from([[Share(1), ALL], [ALL], [Share(2), Share(3), ALL]]),
    max_unavailable=st.sampled_from([Share(1), Share(3), Share(percent=50)]),
    failure_domain=st.sampled_from([None, domain(), domain(maxUnavailable="50%")]),
    soak_seconds=st.sampled_from([0, 60]),
    max_failures=st.integers(0, 2),
    on_failure=st.sampled_from(["halt", "reverse"]),
    stage_timeout_seconds=st.sampled_from([0, 100]),
    gates=st.sampled_from([[], [gate_of("job"), gate_of("person", approval=True)]]),
)
events = st.lists(st.tuples(st.integers(0, 7), reports, st.floats(0, 200)), max_size=60)
STOPPED = {Phase.HALTED, Phase.REVERSING, Phase.REVERSED, Phase.ABORTED}


@settings(max_examples=400, deadline=None)
@given(plans, events)
def test_budgets_hold_and_every_roll_out_ends_or_says_why(plan: RolloutProperties, history: list[Any]) -> None:
    labels = {f"n{number}": {"site": str(number % 2)} for number in range(8)}
    fleet = Fleet(plan, 8, labels)
    hand: set[str] = set()  # nodes that the roll-out does not begin itself
    for number, what, seconds in history:
        was_stopped = fleet.phase in STOPPED
        before, earlier = len(fleet.applied), fleet.rollout.state
        fleet.step()
        check_soak(fleet, earlier)
        assert not was_stopped or all(each.revision == 1 for each in fleet.applied[before:])
        check_budgets(fleet, hand)
        check_evidence(fleet)
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
    check_evidence(fleet)
    fleet.settle()
    assert fleet.rollout.is_settled
    check_none_is_left(fleet, hand)


def happen(fleet: Fleet, name: str, what: str, hand: set[str]) -> None:
    rollout, now = fleet.rollout, fleet.now
    reports: dict[str, dict[str, Any]] = {
        "succeed": {},
        "fail": {"failure": "broken", "applied": False},
        "offline": {"offline": True},
        "online": {"applied": fleet.known[name].applied},
        "not ready": {"ready": False, "unready": True},
        "unknown": {"ready": False},
        "gone": {"gone": "It was deleted."},
        "window": {"opens": now + 100, "applied": False},
        "paused": {"paused": True, "applied": False},
        "staged": {"staged": 2},
        "no machine": {"passive": True, "ready": False},
    }
    events: dict[str, Callable[[], object]] = {
        "restart": fleet.restart,
        "crash": fleet.crash,
        "pause": lambda: rollout.set_paused(True),
        "resume": lambda: rollout.set_paused(False),
        "abort": lambda: rollout.abort("a person", now),
        "reverse": lambda: rollout.reverse("a person", now),
    }
    if what in reports:
        fleet.report(name, **reports[what])
        hand |= {name} if what == "no machine" else set()  # it may join on the revision, beyond the budget
    elif what in events:
        events[what]()
    elif what == "other revision" or (what == "by hand" and not rollout.state.reversing):
        fleet.applied.append(Apply(name, 2 if what == "by hand" else 7))
        hand.add(name)
        fleet.report(name, applied=False)
    elif what == "clock":
        fleet.now += 5000.0
        rollout.shift(5000.0, fleet.now)
    elif what in {"gate fails", "gate passes"} and (gate := rollout.current_gate):
        rollout.gate_answered(gate.wave, gate.gate, now, passed=what == "gate passes")
    elif what == "new node" and fleet.size == 8:
        fleet.size = 9
        fleet.add("n8")


def check_budgets(fleet: Fleet, hand: set[str]) -> None:
    plan, nodes = fleet.plan, fleet.rollout.nodes.values()
    busy = [node for node in nodes if node.state.is_busy and node.name not in hand]
    assert len(busy) <= plan.max_unavailable.of(len(nodes))
    if plan.failure_domain:
        for domain in {node.domain for node in busy}:
            members = sum(node.domain == domain for node in nodes)
            same = sum(node.domain == domain for node in busy)
            assert same <= plan.failure_domain.max_unavailable.of(members)
    updating = {node.wave for node in nodes if node.state is NodeState.UPDATING and node.name not in hand}
    assert fleet.rollout.state.reversing or all(wave <= fleet.rollout.state.wave for wave in updating)


def check_soak(fleet: Fleet, before: RolloutState) -> None:
    """A wave ends only when all of its nodes were heard of after the soak time."""
    if (
        fleet.plan.soak_seconds
        and before.phase is Phase.SOAKING
        and fleet.phase in {Phase.RUNNING, Phase.GATES, Phase.SUCCEEDED}
    ):
        for node in fleet.rollout.nodes.values():
            if node.wave == before.wave and node.state is NodeState.UPDATED and not node.report.passive:
                assert node.report.seen >= before.since + fleet.plan.soak_seconds


def check_evidence(fleet: Fleet) -> None:
    """No failure is lost, and no roll-out succeeds without a node that shows that the revision works."""
    state, nodes = fleet.rollout.state, fleet.rollout.nodes.values()
    updated = [node for node in nodes if node.state is NodeState.UPDATED and not node.report.passive]
    if not fleet.phase.is_final and not state.reversing:
        assert state.failures <= fleet.plan.max_failures
        assert not [node for node in updated if node.wave == state.wave and node.report.unready]
    if fleet.phase in {Phase.HALTED, Phase.ABORTED, Phase.REVERSED}:
        assert state.reason
    if fleet.phase is Phase.SUCCEEDED:
        active = [node for node in nodes if not node.report.passive and node.state is not NodeState.GONE]
        assert updated or not active or fleet.rollout.busy


def check_none_is_left(fleet: Fleet, hand: set[str]) -> None:
    """After a reversal, every node was given the revision that it had, unless a person has decided otherwise."""
    if not fleet.rollout.state.reversing or fleet.phase is Phase.ABORTED:
        return
    for node in fleet.rollout.nodes.values():
        revision = fleet.revisions[node.name]
        by_hand = node.state is NodeState.GONE or (node.state is NodeState.PENDING and node.name in hand)
        assert by_hand or revision in {1, 7}, node
        assert not node.state.is_touched or revision == 7, node
