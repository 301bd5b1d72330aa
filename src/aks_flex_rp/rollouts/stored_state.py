"""The stored form of a roll-out's state and of its nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.states import GateResult, NodeState, Phase, RolloutNode, RolloutState
from aks_flex_rp.store.rollout_model import StoredRolloutNode

if TYPE_CHECKING:
    from aks_flex_rp.rollouts.states import NodeReport
    from aks_flex_rp.store.model import Document
    from aks_flex_rp.store.rollout_model import StoredRollout

NOT_OF_STATE = frozenset({"limit", "nodes", "orders", "phase"})


def state_document(state: RolloutState, limit: int, nodes: int) -> Document:
    """Returns the stored form. `limit` is the number of nodes that may be unavailable, for other writers, and
    `nodes` the number of all, so that none can be deleted unnoticed.
    """
    return {**asdict(state), "phase": state.phase.value, "limit": limit, "nodes": nodes}


def state_of(document: Document) -> RolloutState:
    if "phase" not in document:  # not stepped yet
        return RolloutState()
    known = {name: value for name, value in document.items() if name not in NOT_OF_STATE}
    known["stage_times"] = tuple(known["stage_times"])
    known["gates"] = tuple(GateResult(**each) for each in known["gates"])
    return RolloutState(phase=Phase(document["phase"]), **known)


def stored_node(rollout: StoredRollout, node: RolloutNode) -> StoredRolloutNode:
    names = (rollout.cluster, rollout.pool, rollout.number, node.name)
    return StoredRolloutNode(
        *names, node.wave, node.source, node.state.value, node.since, node.cause[:1000], node.domain
    )


def node_of(stored: StoredRolloutNode, report: NodeReport) -> RolloutNode:
    return RolloutNode(
        stored.node,
        stored.wave,
        stored.source,
        NodeState(stored.state),
        stored.since,
        stored.cause,
        stored.domain,
        report,
    )
