"""Roll-outs as others see them: resources of the API in the ARM envelope, and counts for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm.ids import POOL_TYPE
from aks_flex_rp.rollouts.states import NodeState, state_of
from aks_flex_rp.rollouts.waits import awaited_approval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.rollouts.states import GateResult
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.pool_model import StateCount, StoredRollout, StoredRolloutNode

ROLLOUT_TYPE = f"{POOL_TYPE}/rollouts"


def rollout_id(cluster: ClusterId, rollout: StoredRollout) -> str:
    return f"{cluster.pool(rollout.pool)}/rollouts/{rollout.key}"


def rollout_resource(rollout: StoredRollout, cluster: ClusterId, counts: Sequence[StateCount]) -> dict[str, Any]:
    state = state_of(rollout.state)
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded",
        **rollout.spec,
        "state": rollout.phase,
        "paused": state.paused,
        "wave": state.wave + 1,
        "waitsFor": list(rollout.waits),
        "failures": state.failures,
        "startedAt": format_utc(rollout.created),
        "stateSince": format_utc(state.since or rollout.created),
        "createdBy": str(rollout.system.get("createdBy", "")),
        "waveProgress": wave_progress(counts),
        "gateResults": [_gate(each) for each in state.gates],
    }
    if state.reason:
        properties["reason"] = state.reason
    if rollout.ended:
        properties["endedAt"] = format_utc(rollout.ended)
    return {
        "id": rollout_id(cluster, rollout),
        "name": rollout.key,
        "type": ROLLOUT_TYPE,
        "etag": rollout.etag,
        "systemData": rollout.system,
        "properties": properties,
    }


def wave_progress(counts: Sequence[StateCount]) -> list[dict[str, int]]:
    """Returns the number of nodes by state for each wave. Offline ones are counted in their state, too."""
    waves: dict[int, dict[str, int]] = {}
    for each in counts:
        empty = {_name(state): 0 for state in NodeState}
        found = waves.setdefault(each.wave, {"wave": each.wave + 1, "nodes": 0, **empty, "offline": 0})
        found["nodes"] += each.nodes
        found["offline"] += each.offline
        found[_name(NodeState(each.state))] = found.get(_name(NodeState(each.state)), 0) + each.nodes
    return [waves[number] for number in sorted(waves)]


def _name(state: NodeState) -> str:
    return state.value[0].lower() + state.value[1:]


def _gate(gate: GateResult) -> dict[str, Any]:
    shown = {
        "wave": gate.wave + 1,
        "gate": gate.gate,
        "state": gate.outcome,
        "startedAt": format_utc(gate.started),
    }
    if gate.answered:
        shown |= {"answeredAt": format_utc(gate.answered), "message": gate.message}
    return shown


def node_entry(node: StoredRolloutNode, *, offline: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": node.node,
        "wave": node.wave + 1,
        "state": node.state,
        "sourceRevision": node.source,
        "offline": offline,
    }
    if node.since:
        shown["since"] = format_utc(node.since)
    if node.cause:
        shown["cause"] = node.cause
    return shown


@dataclass(frozen=True)
class RolloutCounts:
    """Counts of all roll-outs for the metrics."""

    phases: Mapping[str, int]  # pools by the phase of their newest roll-out
    nodes: Mapping[str, int]  # nodes of active roll-outs by state
    approvals: int  # active roll-outs that wait for an approval
    progress: float  # when the active roll-out that is idle for longest last made progress; 0 without an active one
    barred: int  # revisions of all pools


async def count_rollouts(store: Store) -> RolloutCounts:
    active = await store.active_rollouts()
    nodes: Counter[str] = Counter()
    progress = {(each.cluster, each.pool): state_of(each.state).since or each.created for each in active}
    for found in await store.active_nodes():
        nodes[found.state] += found.nodes
        key = (found.cluster, found.pool)
        if key in progress:
            progress[key] = max(progress[key], found.since)
    return RolloutCounts(
        await store.newest_phases(),
        nodes,
        sum(awaited_approval(each) != "" for each in active),
        min(progress.values(), default=0.0),
        sum(len(each.barred) for each in await store.all_pool_versions()),
    )
