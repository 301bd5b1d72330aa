"""A roll-out in the memory of the replica that steps it: the engine with what is stored of it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.engine import Rollout
from aks_flex_rp.rollouts.node_reports import node_labels, node_report
from aks_flex_rp.rollouts.spec import RolloutProperties
from aks_flex_rp.rollouts.states import NodeState, Phase, RolloutNode, RolloutState, state_of
from aks_flex_rp.rollouts.waits import waits_for
from aks_flex_rp.store.model import RecordRefused
from aks_flex_rp.store.pool_model import Heartbeat, StoredRolloutNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.rollouts.states import NodeReport, Stage
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Document
    from aks_flex_rp.store.pool_model import StoredRollout

RolloutId = tuple[str, str, int]  # cluster, pool and number


@dataclass
class ActiveRollout:
    stored: StoredRollout
    spec: RolloutProperties
    engine: Rollout
    saved: RolloutState  # as stored
    stages: deque[Stage] = field(default_factory=deque)  # that wait to be carried out
    is_due: bool = True  # something happened since the last step

    @classmethod
    async def load(cls, store: Store, stored: StoredRollout, now: float) -> ActiveRollout:
        spec = RolloutProperties.model_validate(stored.spec)
        reports = await read_reports(store, stored, now)
        gone = node_report(None, stored.pool, Heartbeat(), now)
        nodes = [node_of(each, reports.get(each.node, gone)) for each in await read_nodes(store, stored)]
        state = state_of(stored.state)
        engine = Rollout(spec, nodes, state, now)
        found = cls(stored, spec, engine, state)
        for node in nodes:  # what was reported while no replica stepped it
            engine.report(node.name, node.report, now)
        return found

    @property
    def key(self) -> tuple[str, str, str]:
        return self.stored.cluster, self.stored.pool, self.stored.key

    @property
    def id(self) -> RolloutId:
        return self.stored.cluster, self.stored.pool, self.stored.number

    def carry_out_orders(self, now: float) -> None:
        """Does what people have ordered. The orders are removed with the next commit."""
        engine = self.engine
        for order in self.stored.state.get("orders", ()):
            self.is_due = True
            by = f"by {order['by']}"
            match order["what"]:
                case "pause" | "resume":
                    engine.set_paused(order["what"] == "pause")
                case "abort":
                    engine.abort(f"Aborted {by}.", now)
                case "reverse":
                    earlier = f" Before: {engine.state.reason}" if engine.state.failed else ""
                    engine.reverse(f"Reversed {by}.{earlier}", now)
                case "approve" if (gate := engine.current_gate) and gate.gate == order["gate"]:
                    engine.gate_answered(gate.wave, gate.gate, now, passed=True, message=f"Approved {by}.")

    def next_stored(self, now: float, *, is_settled: bool) -> StoredRollout | None:
        """Returns the roll-out as it is to be stored now, or None if nothing changed. One that is not settled is
        stepped again after a restart.
        """
        engine, phase = self.engine, self.engine.phase
        after = replace(
            self.stored,
            phase=phase.value,
            active=not phase.is_final,
            open=not is_settled,
            state=state_document(engine.state, engine.queue.limit, len(engine.nodes)),
            waits=tuple(waits_for(engine, now)),
            ended=(self.stored.ended or now) if phase.is_final else 0.0,
        )
        return None if after == self.stored else after

    async def add_new_nodes(self, store: Store, now: float) -> None:
        """Adds the nodes that came into the pool since the roll-out was created, to its last wave."""
        beats = await store.heartbeats(self.stored.cluster, self.stored.pool)
        for key in beats.keys() - self.engine.nodes.keys():
            node = await store.node(self.stored.cluster, key)
            if node is None or not (self.spec.node_selector or {}).items() <= node_labels(node).items():
                continue
            report = node_report(node, self.stored.pool, beats[key], now)
            if not report.gone and report.desired != self.engine.plan.revision:
                domain = self.engine.plan.domain_of(node_labels(node))
                self.engine.add(RolloutNode(key, 0, report.desired, domain=domain, report=report), now)
                self.is_due = True

    def changed_nodes(self) -> list[StoredRolloutNode]:
        return [stored_node(self.stored, node) for node in self.engine.take_changes()]

    def updated_nodes(self, wave: int) -> tuple[str, ...]:
        nodes = self.engine.nodes.values()
        return tuple(
            node.name
            for node in nodes
            if node.wave == wave and node.state is NodeState.UPDATED and not node.report.passive
        )

    @property
    def usual_source(self) -> int:
        """The revision that most nodes had before."""
        counts = Counter(node.source for node in self.engine.nodes.values() if node.source)
        return counts.most_common(1)[0][0] if counts else 0

    @property
    def stable_revision(self) -> int:
        """The revision on which new nodes start after this; 0 if the roll-out does not decide it."""
        if self.engine.phase is Phase.SUCCEEDED:
            return self.engine.plan.revision
        return self.usual_source if self.engine.state.reversing else 0


def state_document(state: RolloutState, limit: int, nodes: int) -> Document:
    """Returns the stored form. `limit` is the number of nodes that may be unavailable, for other writers, and
    `nodes` the number of all, so that none can be deleted unnoticed.
    """
    return {**asdict(state), "phase": state.phase.value, "limit": limit, "nodes": nodes}


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


async def read_nodes(store: Store, stored: StoredRollout) -> Sequence[StoredRolloutNode]:
    """Returns the nodes of a roll-out. Raises RecordRefused if one is missing: a wave without its nodes would count
    as complete.
    """
    found = await store.rollout_nodes(stored)
    missing = int(stored.state.get("nodes", 0)) - len(found)
    if missing > 0 and await store.rollout(stored.cluster, stored.pool, stored.key):
        raise RecordRefused(
            f"roll-out {stored.pool}/{stored.key}", f"the rows of {missing} of its nodes were deleted"
        )
    return found


async def read_reports(store: Store, stored: StoredRollout, now: float) -> dict[str, NodeReport]:
    """Returns what is known of all nodes of the pool of a roll-out."""
    beats = await store.heartbeats(stored.cluster, stored.pool)
    return {
        node.key: node_report(node, stored.pool, beats.get(node.key, Heartbeat()), now)
        async for node in store.each_node(stored.cluster, stored.pool)
    }
