"""What a roll-out waits for, in words for people and as a time for the controller. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.rollout_nodes import MAX_SHOWN
from aks_flex_rp.rollouts.states import NodeState, Phase, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.rollouts.engine import Rollout
    from aks_flex_rp.store.pool_model import StoredRollout


def waits_for(rollout: Rollout, now: float) -> list[str]:
    """Returns what a roll-out that does not go on waits for. Empty only if it is final."""
    if rollout.phase.is_final:
        return []
    paused = ["a person: it is paused"] if rollout.state.paused else []
    return [*paused, *_waits(rollout, now)]


def _waits(rollout: Rollout, now: float) -> Iterator[str]:
    wave = rollout.state.wave + 1
    match rollout.phase:
        case Phase.SOAKING if now < rollout.state.since + rollout.plan.soak_seconds:
            yield f"the soak time of wave {wave}"
        case Phase.SOAKING:
            nodes = rollout.unhealthy()[:MAX_SHOWN]
            yield from (f"{name}: a report that it is healthy" for name in nodes)
        case Phase.GATES:
            gate = rollout.current_gate
            if gate is None:
                yield "the next gate"
            elif rollout.planned(gate.gate).needs_approval:
                yield f"a person: approval of the gate {gate.gate} of wave {wave}"
            else:
                yield f"the gate {gate.gate} of wave {wave}"
        case _:
            yield from _node_waits(rollout, now)


def _node_waits(rollout: Rollout, now: float) -> Iterator[str]:
    found = [f"{name}: it is {rollout.nodes[name].state.value.lower()}" for name in list(rollout.busy)[:MAX_SHOWN]]
    found += rollout.waiting.describe(rollout.nodes, now)
    down = [name for name in rollout.queue.unavailable if rollout.nodes[name].state is NodeState.FAILED]
    budget = f"the budget, which includes {', '.join(down[:3])}: failed and not Ready" if down else "the budget"
    found += [f"{name}: {budget}" for name in rollout.queue.waiting[:MAX_SHOWN]]
    yield from found or ["a node that can be updated"]


def wakes_at(rollout: Rollout) -> float | None:
    """Returns when `step` must be called at the latest without a report; None if only an event goes on."""
    moments = [rollout.waiting.wakes_at()]
    if first := next(iter(rollout.busy), None):
        moments.append(rollout.node_deadline(first))
    if rollout.phase is Phase.SOAKING:
        moments += [rollout.state.since + rollout.plan.soak_seconds, rollout.health_deadline]
    if gate := rollout.current_gate:
        moments.append(rollout.gate_deadline(gate))
    return min((each for each in moments if each is not None), default=None)


def awaited_approval(rollout: StoredRollout) -> str:
    """Returns the gate that waits for a person; empty if there is none."""
    gates = state_of(rollout.state).gates
    if rollout.phase != Phase.GATES.value or not gates or gates[-1].answered:
        return ""
    approvals = {each["name"] for each in rollout.spec.get("gates", ()) if "approval" in each}
    return gates[-1].gate if gates[-1].gate in approvals else ""
