"""The nodes of a roll-out: which are updated now, which download ahead, which may begin, and what the others wait
for. No I/O.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.start_queue import StartQueue
from aks_flex_rp.rollouts.states import NodeState, Phase, Stage
from aks_flex_rp.rollouts.waiting_nodes import WaitingNodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_rp.rollouts.spec import RolloutProperties
    from aks_flex_rp.rollouts.states import NodeReport, RolloutNode, RolloutState

RETURN_SECONDS = 300.0  # in which nodes can report what they did while no replica ran


class RolloutNodes:
    """The part of a roll-out that keeps books: every change of a node goes through `_move` or `_change`."""

    def __init__(
        self, plan: RolloutProperties, nodes: Iterable[RolloutNode], state: RolloutState, now: float
    ) -> None:
        self.plan = plan
        self.nodes = {node.name: node for node in nodes}
        # A wave whose nodes were all moved into an earlier one still counts.
        self.wave_count = max(max((node.wave for node in self.nodes.values()), default=0) + 1, len(state.stage_times))
        self.state = state if state.since else replace(state, since=now, stage_times=(0.0,) * self.wave_count)
        self.waves: list[dict[str, None]] = [{} for _ in range(self.wave_count)]
        for node in self.nodes.values():
            self.waves[node.wave][node.name] = None
        busy = sorted((node for node in self.nodes.values() if node.state.is_busy), key=lambda node: node.since)
        self.busy = {node.name: None for node in busy}  # the one that began first is the first
        self._changed: set[str] = set()
        self._stages: list[Stage] = []  # that the next step returns
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
        return self._deadline(self.nodes[name].since, self.plan.node_timeout_seconds)

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

    def _set_wave(self, node: RolloutNode, number: int) -> RolloutNode:
        del self.waves[node.wave][node.name]
        self.waves[number][node.name] = None
        return self._change(replace(node, wave=number))

    def _is_wave_waiting(self) -> bool:
        """Returns whether nodes of the wave are busy, or can still begin. Those that are away do not hold it up."""
        return bool(self.busy) or self.waiting.holds_up or len(self.queue) > 0

    def _is_evidence(self, node: RolloutNode) -> bool:
        """Returns whether the node shows that the revision works."""
        return not node.report.passive and node.state is NodeState.UPDATED

    def _is_watched(self, node: RolloutNode) -> bool:
        """Returns whether the node is in the wave whose health decides."""
        return not self.phase.is_final and not self.state.reversing and node.wave == self.state.wave

    def _why_gone(self, node: RolloutNode) -> str:
        """Returns why the node no longer belongs to the roll-out; empty if it does."""
        report, state = node.report, node.state
        kept = {self.plan.revision, 0} if state is NodeState.UPDATED else {self.plan.revision, node.source, 0}
        is_ended = self.phase.is_final or self.state.reversing or report.passive
        is_decided = state in {NodeState.UPDATED, NodeState.FAILED} and not is_ended
        if report.gone or report.desired in kept or not (state is NodeState.PENDING or state.is_busy or is_decided):
            return report.gone
        return f"It was given revision {report.desired} by a person."

    def _count(self, node: RolloutNode) -> None:
        """Counts the node as unavailable while it is updated, and after a failure until it is Ready.

        A failed node that is offline is not counted: it may never return, and the roll-out would never end.
        """
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
            staged_by, seconds = 0.0, self.plan.stage_timeout_seconds
            if not self.state.reversing and node.report.staged != self.plan.revision and seconds:
                asked = self.state.stage_times[node.wave]
                staged_by = asked + seconds if asked else 0.0
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
        if domain := self.plan.failure_domain:
            members: dict[str, int] = {}
            for node in self.nodes.values():
                members[node.domain] = members.get(node.domain, 0) + 1
            limits = {name: domain.max_unavailable.of(count) for name, count in members.items()}
        self.queue = StartQueue(self.plan.max_unavailable.of(len(self.nodes)), limits)
        self.waiting = WaitingNodes()
        for name in self.nodes:
            self._consider(self.nodes[name], now)

    # Downloads ahead

    def _set_stage_time(self, wave: int, now: float) -> None:
        times = self.state.stage_times
        self._set(stage_times=(*times[:wave], now, *times[wave + 1 :]))

    def _stages_of(self, wave: int) -> list[Stage]:
        nodes = [self.nodes[name] for name in self.waves[wave]]
        open_nodes = [node for node in nodes if node.state is NodeState.PENDING and not node.report.passive]
        return [
            Stage(node.name, self.plan.revision) for node in open_nodes if node.report.staged != self.plan.revision
        ]

    def _stage_again(self) -> None:
        """Asks again after a restart: the process may have ended before all nodes were asked."""
        for wave, asked in enumerate(self.state.stage_times):
            if asked and wave >= self.state.wave:
                self._stages += self._stages_of(wave)

    def _unstage(self) -> None:
        asked = [wave for wave, moment in enumerate(self.state.stage_times) if moment]
        nodes = [self.nodes[name] for wave in asked for name in self.waves[wave]]
        self._stages = [Stage(node.name, 0) for node in nodes if node.state is NodeState.PENDING]
