"""Counts of all roll-outs for the metrics, read from the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.states import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.store.protocol import Store
    from aks_flex_rp.store.rollout_model import StoredRollout


@dataclass(frozen=True)
class RolloutCounts:
    phases: Mapping[str, int]  # pools by the phase of their newest roll-out
    nodes: Mapping[str, int]  # nodes of active roll-outs by state
    approvals: int  # active roll-outs that wait for an approval
    progress: float  # when the active roll-out that is idle for longest last made progress; 0 without an active one
    barred: int  # revisions of all pools


async def count_rollouts(store: Store) -> RolloutCounts:
    active = await store.active_rollouts()
    nodes: Counter[str] = Counter()
    progress = {(each.cluster, each.pool): _since(each) for each in active}
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


def awaited_approval(rollout: StoredRollout) -> str:
    """Returns the gate that waits for a person; empty if there is none."""
    gates = rollout.state.get("gates", ())
    if rollout.phase != Phase.GATES.value or not gates or gates[-1]["answered"]:
        return ""
    approvals = {each["name"] for each in rollout.spec.get("gates", ()) if "approval" in each}
    return str(gates[-1]["gate"]) if gates[-1]["gate"] in approvals else ""


def _since(rollout: StoredRollout) -> float:
    return float(rollout.state.get("since") or rollout.created)
