"""The nodes of a roll-out: which are updated now, which may begin, and what the others wait for. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.start_queue import StartQueue
from aks_flex_rp.rollouts.states import NodeState, Phase
from aks_flex_rp.rollouts.waiting_nodes import WaitingNodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_rp.rollouts.plan import RolloutPlan
    from aks_flex_rp.rollouts.states import NodeReport, RolloutNode, RolloutState

RETURN_SECONDS = 300.0  # in which nodes can report what they did while no replica ran


class RolloutNodes:
    """The part of a roll-out that keeps books: every change of a node goes through `_move` or `_change`."""

    def __init__(self, plan: RolloutPlan, nodes: Iterable[RolloutNode], state: RolloutState, now: float) -> None:
        self.plan = plan
        self.nodes = {node.name: node for node in nodes}
        self.wave_count = max((node.wave for node in self.nodes.values()), default=0) + 1
        self.state = state if state.since else replace(state, since=now, stage_times=(0.0,) * self.wave_count)
        self.waves: list[dict[str, None]] = [{} for _ in range(self.wave_count)]
        for node in self.nodes.values():
            self.waves[node.wave][node.name] = None
        busy = sorted((node for node in self.nodes.values() if node.state.is_busy), key=lambda node: node.since)
        self.busy = {node.name: None for node in busy}  # the one that began first is the first
        self._changed: set[str] = set()
        self.returned = 0.0  # when roll-outs were stepped again, after no replica did
        self._restart_queue(now)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def is_settled(self) -> bool:
        """Whether nothing can happen any more, not even when nodes return."""
        return self.phase.is_final and not self.busy and not self.waiting and not self.queue

    def is_undone(self, name: str, report: NodeReport) -> bool:
        """Returns whether a node that is updated was given something else meanwhile."""
        node = self.nodes.get(name)
        if node is None or not node.state.is_busy or report.gone:
            return False
        return report.desired != (self.plan.revision if node.state is NodeState.UPDATING else node.source)

    def take_changes(self) -> list[RolloutNode]:
        """Returns the nodes that changed since the last call, to be stored with the state."""
        changed, self._changed = self._changed, set()
        return [self.nodes[name] for name in sorted(changed)]

    def node_deadline(self, name: str) -> float:
        return self._deadline(self.nodes[name].since, self.plan.node_seconds)

    def _deadline(self, since: float, seconds: float) -> float:
        """Returns the end of a time limit. One that ran while no replica did leaves time to report."""
        end = since + seconds
        return max(end, self.returned + RETURN_SECONDS) if since < self.returned else end

    @property
    def _catches_up(self) -> bool:
        is_reversing = self.state.reversing and self.phase is not Phase.ABORTED
        return self.phase.is_final and (self.phase is Phase.SUCCEEDED or is_reversing)

    def _set(self, **values: object) -> None:
        self.state = replace(self.state, **values)  # type: ignore[arg-type]

    def _move(self, node: RolloutNode, state: NodeState, now: float, cause: str = "") -> RolloutNode:
        if state in {NodeState.UPDATED, NodeState.REVERSING, NodeState.REVERSED}:
            cause = cause or node.cause  # why it had failed, or is brought back
        moved = self._change(replace(node, state=state, since=now, cause=cause))
        self.busy.pop(node.name, None)
        if state.is_busy:
            self.busy[node.name] = None
        self.waiting.discard(node.name)
        self.queue.discard(node.name)
        self._count(moved)
        return moved

    def _change(self, node: RolloutNode) -> RolloutNode:
        self.nodes[node.name] = node
        self._changed.add(node.name)
        return node

    def _count(self, node: RolloutNode) -> None:
        """Counts the node as unavailable while it is updated, and after a failure until it is Ready."""
        down = node.state is NodeState.FAILED and not node.report.ready and not node.report.offline
        if node.state.is_busy or (down and not self.state.reversing):
            self.queue.occupy(node.name, node.domain)
        else:
            self.queue.release(node.name)

    def _consider(self, node: RolloutNode, now: float) -> None:
        """Decides whether the node may begin, and if not, what it waits for."""
        self._count(node)
        self.waiting.discard(node.name)
        self.queue.discard(node.name)
        if self._is_open(node):
            staged_by = 0.0
            if not self.state.reversing and node.report.staged != self.plan.revision and self.plan.stage_seconds:
                asked = self.state.stage_times[node.wave]
                staged_by = asked + self.plan.stage_seconds if asked else 0.0
            if not self.waiting.hold(node, now, staged_by):
                self.queue.add(node.name, node.domain)

    def _is_open(self, node: RolloutNode) -> bool:
        """Returns whether the node is to begin in this wave, or should have in an earlier one."""
        if node.wave > self.state.wave or (self.phase.is_final and not self._catches_up):
            return False
        if self.state.reversing:
            return node.state.is_touched and node.report.desired in {self.plan.revision, node.source, 0}
        return node.state is NodeState.PENDING

    def _restart_queue(self, now: float) -> None:
        limits = None
        if domain := self.plan.domain:
            members: dict[str, int] = {}
            for node in self.nodes.values():
                members[node.domain] = members.get(node.domain, 0) + 1
            limits = {name: domain.max_unavailable.of(count) for name, count in members.items()}
        self.queue = StartQueue(self.plan.max_unavailable.of(len(self.nodes)), limits)
        self.waiting = WaitingNodes()
        for name in self.nodes:
            self._consider(self.nodes[name], now)
