"""Decides what a roll-out does next, from what its nodes report and the time. No I/O: a controller that holds the
lease carries the decisions out, and stores the state before.

The cost of a step grows with what changed: each method looks at one node, or at those that begin. The state of all
nodes is rebuilt from the store when a replica takes the lease. Nodes that are offline hold nothing up: they begin
when they return, also after the end, within the budget.

    Running -> Soaking -> Gates -> Running (next wave) … -> Done
       |                                         Halted <- a failure beyond the limit, a failed gate
       `-> Reversing -> Reversed                  Aborted
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.plan import OnFailure
from aks_flex_rp.text_enum import StoredEnum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aks_flex_rp.rollouts.plan import RolloutPlan


class Phase(StoredEnum):
    RUNNING = "Running"
    SOAKING = "Soaking"
    GATES = "Gates"
    DONE = "Done"
    HALTED = "Halted"
    REVERSING = "Reversing"
    REVERSED = "Reversed"
    ABORTED = "Aborted"

    @property
    def is_final(self) -> bool:
        return self in {Phase.DONE, Phase.HALTED, Phase.REVERSED, Phase.ABORTED}


class NodeState(StoredEnum):
    PENDING = "Pending"
    UPDATING = "Updating"
    UPDATED = "Updated"
    FAILED = "Failed"
    REVERSING = "Reversing"
    REVERSED = "Reversed"
    GONE = "Gone"  # deleted, or in another pool

    @property
    def is_busy(self) -> bool:
        return self in {NodeState.UPDATING, NodeState.REVERSING}


@dataclass(frozen=True)
class NodeReport:
    """What is known of a node."""

    ready: bool = True
    revision: int = 0  # that its machine has applied; 0 if unknown
    failure: str = ""  # why it did not apply the revision that it was given last
    offline: bool = False
    opens: float = 0.0  # when its maintenance window opens; 0 if it is open
    gone: bool = False


@dataclass(frozen=True)
class RolloutNode:
    name: str
    wave: int
    state: NodeState = NodeState.PENDING
    since: float = 0.0  # of the state
    cause: str = ""
    domain: str = ""
    report: NodeReport = field(default_factory=NodeReport)


@dataclass(frozen=True)
class Apply:
    """Brings a node to a revision."""

    node: str
    revision: int


@dataclass(frozen=True)
class RunGate:
    wave: int
    gate: str


Action = Apply | RunGate


class Rollout:
    def __init__(self, plan: RolloutPlan, waves: Sequence[Sequence[str]], domains: Mapping[str, str]) -> None:
        self.plan = plan
        self.phase = Phase.RUNNING
        self.wave = 0
        self.since = 0.0  # of the phase
        self.reason = ""
        self.paused = False
        self.gate = 0  # the one that runs
        self.nodes = {
            name: RolloutNode(name, number, domain=domains.get(name, ""))
            for number, wave in enumerate(waves)
            for name in wave
        }
        self.waves = [list(wave) for wave in waves]
        self._open = [set(wave) for wave in waves]  # nodes of each wave that have not begun, or not been reversed
        self._busy: set[str] = set()
        self.failures = 0

    # What happens

    def report(self, name: str, report: NodeReport, now: float) -> None:
        """Takes in what is known of a node."""
        node = self.nodes.get(name)
        if node is None or node.state is NodeState.GONE:
            return
        node = self._set(replace(node, report=report))
        if report.gone:
            self._move(node, NodeState.GONE, now)
        elif node.state is NodeState.UPDATING:
            self._judge(node, self.plan.target, NodeState.UPDATED, now)
        elif node.state is NodeState.REVERSING:
            self._judge(node, self.plan.source, NodeState.REVERSED, now)
        elif node.state is NodeState.UPDATED and not report.ready and not report.offline and not self.phase.is_final:
            self._fail(node, "It stopped being Ready after its update.", now)

    def gate_answered(self, wave: int, gate: str, failure: str, now: float) -> None:
        if self.phase is not Phase.GATES or (wave, gate) != (self.wave, self._gate_name()):
            return  # the answer of an earlier run
        if failure:
            self._stop(f"The gate {gate} failed: {failure}", now)
        else:
            self.gate += 1

    def abort(self, reason: str, now: float) -> None:
        """Begins nothing any more. Nodes that are updating complete it by themselves."""
        if not self.phase.is_final:
            self._enter(Phase.ABORTED, now, reason)

    def reverse(self, reason: str, now: float) -> None:
        """Brings all nodes that were touched back, in the same waves."""
        if self.phase in {Phase.REVERSING, Phase.REVERSED, Phase.ABORTED}:
            return
        self._enter(Phase.REVERSING, now, reason)
        self.wave, self.paused = 0, False
        for number, wave in enumerate(self.waves):
            touched = (NodeState.UPDATING, NodeState.UPDATED, NodeState.FAILED)
            self._open[number] = {name for name in wave if self.nodes[name].state in touched}

    # What to do

    def step(self, now: float) -> list[Action]:
        """Returns what to do now. Called after reports, and when `wakes_at` has come."""
        self._check_time(now)
        actions: list[Action] = []
        while not self.phase.is_final or self.phase is Phase.DONE:
            before = (self.phase, self.wave, self.gate)
            actions += self._advance(now)
            if (self.phase, self.wave, self.gate) == before:
                break
        return actions

    def _advance(self, now: float) -> Iterator[Action]:
        match self.phase:
            case Phase.DONE:
                yield from self._begin_nodes(now)
            case Phase.RUNNING | Phase.REVERSING:
                yield from self._begin_nodes(now)
                if not self._is_wave_waiting():
                    self._complete_wave(now)
            case Phase.SOAKING:
                if now >= self.since + self.plan.soak_seconds:
                    self.gate = 0
                    self._enter(Phase.GATES, now)
            case Phase.GATES:
                if self.gate >= len(self.plan.gates):
                    self._next_wave(now)
                elif self.since != now or not self.paused:
                    yield RunGate(self.wave, self._gate_name())

    def _begin_nodes(self, now: float) -> Iterator[Action]:
        if self.paused:
            return
        state, revision = (
            (NodeState.REVERSING, self.plan.source)
            if self.phase is Phase.REVERSING
            else (NodeState.UPDATING, self.plan.target)
        )
        for name in self._candidates():
            node = self.nodes[name]
            if node.report.offline or node.report.opens > now:
                continue
            if name not in self._busy and not self._has_budget(node):
                continue
            self._open[node.wave].discard(name)
            self._move(node, state, now)
            yield Apply(name, revision)

    def _candidates(self) -> list[str]:
        """Returns the nodes that may begin: those of this wave, and of earlier ones that were offline then."""
        return [name for names in self._open[: self.wave + 1] for name in sorted(names)]

    @property
    def waiting(self) -> list[str]:
        """Nodes that have not begun because they are offline."""
        return [name for name in self._candidates() if self.nodes[name].report.offline]

    def _has_budget(self, node: RolloutNode) -> bool:
        limit = self.plan.max_unavailable.of(len(self.nodes))
        if len(self._busy) >= limit:
            return False
        if self.plan.domain is None:
            return True
        same = sum(1 for name in self._busy if self.nodes[name].domain == node.domain)
        return same < self.plan.domain.max_unavailable

    def _is_wave_waiting(self) -> bool:
        """Returns whether nodes of the wave are busy, or can still begin. Offline ones do not hold it up."""
        if self._busy:
            return True
        return any(not self.nodes[name].report.offline for name in self._candidates())

    def _complete_wave(self, now: float) -> None:
        if self.phase is Phase.REVERSING:
            if self.wave + 1 < len(self.waves):
                self.wave += 1
            else:
                self._enter(Phase.REVERSED, now, self.reason)
            return
        self._enter(Phase.SOAKING, now)

    def _next_wave(self, now: float) -> None:
        if self.wave + 1 < len(self.waves):
            self.wave += 1
            self._enter(Phase.RUNNING, now)
        else:
            self._enter(Phase.DONE, now)

    # What it waits for

    def waits_for(self, now: float) -> list[str]:
        """Returns in words what a roll-out that does not go on waits for. Empty only if it is final."""
        if self.phase.is_final:
            return []
        if self.phase is Phase.SOAKING:
            return [f"soak time of wave {self.wave + 1}, {self.since + self.plan.soak_seconds - now:.0f} s"]
        if self.phase is Phase.GATES:
            return [f"gate {self._gate_name()} of wave {self.wave + 1}"]
        found = ["a person: it is paused"] if self.paused else []
        found += [f"{name}: {self.nodes[name].state.value.lower()}" for name in sorted(self._busy)]
        for name in self._candidates():
            report = self.nodes[name].report
            why = "offline" if report.offline else "its maintenance window" if report.opens > now else "the budget"
            found.append(f"{name}: {why}")
        return found

    def wakes_at(self, now: float) -> float | None:
        """Returns when `step` must be called at the latest without a report; None if only an event goes on."""
        moments = [self.nodes[name].since + self.plan.node_seconds for name in self._busy]
        if self.phase is Phase.SOAKING:
            moments.append(self.since + self.plan.soak_seconds)
        if self.phase in {Phase.RUNNING, Phase.REVERSING, Phase.DONE}:
            moments += [opens for name in self._candidates() if (opens := self.nodes[name].report.opens) > now]
        return min(moments, default=None)

    # Transitions

    def _judge(self, node: RolloutNode, revision: int, done: NodeState, now: float) -> None:
        if node.report.failure:
            self._fail(node, node.report.failure, now)
        elif node.report.revision == revision and node.report.ready:
            self._move(node, done, now)

    def _check_time(self, now: float) -> None:
        for name in list(self._busy):
            node = self.nodes[name]
            if now - node.since >= self.plan.node_seconds and not node.report.offline:
                self._fail(node, f"It was not done after {self.plan.node_seconds:.0f} s.", now)

    def _fail(self, node: RolloutNode, cause: str, now: float) -> None:
        self._move(node, NodeState.FAILED, now, cause)
        if self.phase is Phase.REVERSING:
            self._enter(Phase.HALTED, now, f"{node.name} could not be brought back: {cause}")
            return
        self.failures += 1
        if self.failures > self.plan.max_failures and (not self.phase.is_final or self.phase is Phase.DONE):
            self._stop(f"{node.name}: {cause}", now)

    def _stop(self, reason: str, now: float) -> None:
        if self.plan.on_failure is OnFailure.REVERSE:
            self.reverse(reason, now)
        else:
            self._enter(Phase.HALTED, now, reason)

    def _enter(self, phase: Phase, now: float, reason: str = "") -> None:
        self.phase, self.since, self.reason = phase, now, reason or self.reason

    def _move(self, node: RolloutNode, state: NodeState, now: float, cause: str = "") -> None:
        self._set(replace(node, state=state, since=now, cause=cause))
        (self._busy.add if state.is_busy else self._busy.discard)(node.name)
        if state is NodeState.GONE:
            self._open[node.wave].discard(node.name)

    def _set(self, node: RolloutNode) -> RolloutNode:
        self.nodes[node.name] = node
        return node

    def _gate_name(self) -> str:
        return self.plan.gates[self.gate] if self.gate < len(self.plan.gates) else ""
