"""The nodes of a roll-out: which are updated now, which download ahead, which may begin, and what the others wait
for. No I/O.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.rollouts.states import NodeState, Phase, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_rp.rollouts.spec import RolloutProperties
    from aks_flex_rp.rollouts.states import NodeReport, RolloutNode, RolloutState

MAX_SHOWN = 10  # nodes for each kind of wait
RETURN_SECONDS = 300.0  # in which nodes can report what they did while no replica ran


class StartQueue:
    """Which node may begin next: those that wait, within the budget of the roll-out and of each failure domain.

    Every method takes constant time, so that a step of a roll-out costs the same in a large fleet.
    """

    def __init__(self, limit: int, domain_limits: Mapping[str, int] | None = None) -> None:
        """`domain_limits` has the limit of each failure domain; None if there are no domains."""
        self.limit = limit
        self._domain_limits = domain_limits
        self._waiting: dict[str, dict[str, None]] = {}  # by domain, in the order of arrival
        self._startable: dict[str, None] = {}  # domains with waiting nodes and a free place
        self._domains: dict[str, str] = {}  # of the waiting nodes
        self._used: dict[str, str] = {}  # nodes that are unavailable, with their domains
        self._used_in: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._domains)

    @property
    def waiting(self) -> list[str]:
        return list(self._domains)

    @property
    def unavailable(self) -> list[str]:
        return list(self._used)

    def add(self, name: str, domain: str) -> None:
        if name not in self._domains:
            self._domains[name] = domain
            self._waiting.setdefault(domain, {})[name] = None
            self._update(domain)

    def discard(self, name: str) -> None:
        domain = self._domains.pop(name, None)
        if domain is not None:
            del self._waiting[domain][name]
            self._update(domain)

    def occupy(self, name: str, domain: str) -> None:
        """Counts a node as unavailable."""
        if name not in self._used:
            self._used[name] = domain
            self._used_in[domain] += 1
            self._update(domain)

    def release(self, name: str) -> None:
        domain = self._used.pop(name, None)
        if domain is not None:
            self._used_in[domain] -= 1
            self._update(domain)

    def next(self) -> str | None:
        """Returns a node that may begin, or None. It waits until it is discarded."""
        if len(self._used) >= self.limit or not self._startable:
            return None
        domain = next(iter(self._startable))
        del self._startable[domain]  # to the end: domains take turns
        self._startable[domain] = None
        return next(iter(self._waiting[domain]))

    def _update(self, domain: str) -> None:
        has_place = self._domain_limits is None or self._used_in[domain] < self._domain_limits.get(domain, 1)
        if self._waiting.get(domain) and has_place:
            self._startable.setdefault(domain)
        else:
            self._startable.pop(domain, None)


class WaitingNodes:
    """Nodes of a wave that cannot begin yet: away, outside of their maintenance window, or still downloading."""

    def __init__(self) -> None:
        self._away: dict[str, None] = {}
        self._until: dict[str, float] = {}  # when a window opens, or the time for downloads is over
        self._timers: list[tuple[float, str]] = []
        self._urgent: dict[str, None] = {}  # nodes that are unavailable already, and need no place in the budget

    def __bool__(self) -> bool:
        return bool(self._away or self._until or self._urgent)

    @property
    def holds_up(self) -> bool:
        """Whether the wave is not complete without these nodes."""
        return bool(self._until or self._urgent)

    def hold(self, node: RolloutNode, now: float, staged_by: float) -> bool:
        """Keeps the node if it cannot begin. `staged_by` is when it begins without its downloads."""
        report = node.report
        if report.is_away and not report.passive:
            self._away[node.name] = None
        elif (until := max(report.opens, staged_by)) > now and not report.passive:
            self._until[node.name] = until
            heapq.heappush(self._timers, (until, node.name))
        elif node.state.is_busy:
            self._urgent[node.name] = None
        else:
            return False
        return True

    def discard(self, name: str) -> None:
        self._away.pop(name, None)
        self._until.pop(name, None)
        self._urgent.pop(name, None)

    def next(self, queue: StartQueue) -> str | None:
        """Returns the node that begins next, or None if there is none, or no place in the budget."""
        return next(iter(self._urgent), None) or queue.next()

    def due(self, now: float) -> list[str]:
        """Returns the nodes whose time has come."""
        found = []
        while self._timers and self._timers[0][0] <= now:
            until, name = heapq.heappop(self._timers)
            if self._until.get(name) == until:
                found.append(name)
        return found

    def wakes_at(self) -> float | None:
        while self._timers and self._until.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def describe(self, nodes: Mapping[str, RolloutNode], now: float) -> list[str]:
        """Returns in words what the first of them wait for."""
        found = []
        for name in list(self._until)[:MAX_SHOWN]:
            opens = nodes[name].report.opens
            window = f"its maintenance window, which opens at {format_utc(opens)}"
            failed = nodes[name].report.not_staged
            downloads = f"its downloads, which failed: {failed}" if failed else "its downloads"
            found.append(f"{name}: {window if opens > now else downloads}")
        away = {True: "it is offline", False: "its updates are paused"}
        return [*found, *(f"{name}: {away[nodes[name].report.offline]}" for name in list(self._away)[:MAX_SHOWN])]


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
            members = Counter(node.domain for node in self.nodes.values())
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
