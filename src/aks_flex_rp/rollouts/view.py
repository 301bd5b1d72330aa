"""Roll-outs and their nodes as the API returns them, in the ARM envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm.ids import POOL_TYPE
from aks_flex_rp.rollouts.states import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.store.rollout_model import StateCount, StoredRollout, StoredRolloutNode

ROLLOUT_TYPE = f"{POOL_TYPE}/rollouts"


def rollout_id(cluster: ClusterId, rollout: StoredRollout) -> str:
    return f"{cluster.pool(rollout.pool)}/rollouts/{rollout.key}"


def rollout_resource(rollout: StoredRollout, cluster: ClusterId, counts: Sequence[StateCount]) -> dict[str, Any]:
    state = rollout.state
    properties: dict[str, Any] = {
        "provisioningState": "Succeeded",
        **rollout.spec,
        "state": rollout.phase,
        "paused": bool(state.get("paused")),
        "wave": int(state.get("wave", 0)) + 1,
        "waitsFor": list(rollout.waits),
        "failures": int(state.get("failures", 0)),
        "startedAt": format_utc(rollout.created),
        "stateSince": format_utc(float(state.get("since") or rollout.created)),
        "createdBy": str(rollout.system.get("createdBy", "")),
        "waveProgress": wave_progress(counts),
        "gateResults": [_gate(each) for each in state.get("gates", ())],
    }
    if state.get("reason"):
        properties["reason"] = state["reason"]
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


def _gate(gate: dict[str, Any]) -> dict[str, Any]:
    answered = float(gate["answered"])
    shown = {
        "wave": int(gate["wave"]) + 1,
        "gate": gate["gate"],
        "state": ("Passed" if gate["passed"] else "Failed") if answered else "Running",
        "startedAt": format_utc(float(gate["started"])),
    }
    if answered:
        shown |= {"answeredAt": format_utc(answered), "message": gate["message"]}
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
