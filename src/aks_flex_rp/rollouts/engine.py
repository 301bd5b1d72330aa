"""Decides what a roll-out does next, from what its nodes report and the time. No I/O: a controller that holds the
lease stores the changed state first, and then carries the actions out.

The cost of a step grows with what changed: a report looks at one node, and a step at those that begin. Nodes that
are away hold nothing up: they begin when they return, also after the end, within the budget.

    Running -> Soaking -> Gates -> Running (next wave) … -> Succeeded
       |                             |
       `-- a failure beyond the limit, or a failed gate --> Halted, or Reversing -> Reversed
    A person can abort: Aborted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.rollout_nodes import RolloutNodes
from aks_flex_rp.rollouts.states import (
    Apply,
    GateResult,
    NodeState,
    Phase,
    RolloutNode,
    RolloutState,
    RunGate,
    Stage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_rp.rollouts.gate_specs import GateSpec
    from aks_flex_rp.rollouts.spec import RolloutProperties
    from aks_flex_rp.rollouts.states import Action, NodeReport

MAX_STARTS = 500  # nodes that begin in one step; more would make its transaction long
HEALTH_SECONDS = 300.0  # after the soak, in which every node of the wave must be seen healthy
GATE_GRACE = 60.0  # in which a gate that has reached its own limit can still say why


class Rollout(RolloutNodes):
    def __init__(
        self, plan: RolloutProperties, nodes: Iterable[RolloutNode], state: RolloutState, now: float
    ) -> None:
        """Takes the stored state, with what is known of each node now."""
        super().__init__(plan, nodes, state, now)
        if not state.since:
            self._enter_wave(0, now)
        elif not self.phase.is_final and not state.reversing:
            self._stage_again()

    # What happens

    def report(self, name: str, report: NodeReport, now: float) -> None:
        """Takes in what is known of a node."""
        before = self.nodes.get(name)
        if before is None or before.state is NodeState.GONE:
            return
        node = self.nodes[name] = replace(before, report=report)
        if why := self._why_gone(node):
            self._move(node, NodeState.GONE, now, why)
        elif self._begins_by_itself(before, node):
            self._judge(self._move(node, NodeState.UPDATING, now), now)
        elif node.state.is_busy:
            if before.report.opens > node.since and not report.opens:  # its time limit counts from the opening
                node = self._move(node, node.state, now)
            self._judge(node, now)
        else:
            self._watch(node, now)
        self._consider(self.nodes[name], now)

    def _begins_by_itself(self, before: RolloutNode, node: RolloutNode) -> bool:
        """Returns whether a person gave the node the revision, or its machine joined the cluster on it."""
        if self.phase.is_final or node.report.passive or node.report.desired != self.plan.revision:
            return False
        has_joined = before.report.passive and node.state is NodeState.UPDATED
        return node.state is NodeState.PENDING or has_joined

    def _watch(self, node: RolloutNode, now: float) -> None:
        """Takes in the health of a node that is not being updated."""
        report = node.report
        is_well = report.applied and report.ready
        match node.state:
            case NodeState.UPDATED if self._is_watched(node) and (report.unready or report.offline):
                what = "stopped reporting" if report.offline else "stopped being Ready"
                self._fail(node, f"It {what} after its update.", now)
            case NodeState.FAILED if report.desired == self.plan.revision and is_well:
                self._move(node, NodeState.UPDATED, now)
            case NodeState.NOT_REVERSED if report.desired == node.source and is_well:
                self._move(node, NodeState.REVERSED, now)

    def refused(self, name: str, cause: str, now: float) -> None:
        """Takes in that a node cannot be given the revision."""
        node = self.nodes[name]
        if node.report.passive:
            self._move(node, NodeState.FAILED, now, cause)
        elif node.state.is_busy:
            self._fail(node, cause, now)

    def staged(self, name: str, now: float) -> None:
        """Takes in that a node has nothing to download."""
        node = self.nodes[name]
        self.nodes[name] = replace(node, report=replace(node.report, staged=self.plan.revision))
        self._consider(self.nodes[name], now)

    def add(self, node: RolloutNode, now: float) -> None:
        """Adds a node that came into the pool meanwhile to the last wave."""
        if node.name not in self.nodes:
            self.nodes[node.name] = replace(node, wave=self.wave_count - 1)
            self.waves[-1][node.name] = None
            self._changed.add(node.name)
            if self.state.stage_times[-1] and not node.report.passive and not self.phase.is_final:
                self._stages.append(Stage(node.name, self.plan.revision))
            self._consider(self.nodes[node.name], now)

    def gate_answered(self, wave: int, gate: str, now: float, *, passed: bool, message: str = "") -> None:
        current = self.current_gate
        if current is None or (current.wave, current.gate) != (wave, gate):
            return  # the answer of an earlier run
        answer = replace(current, answered=now, passed=passed, message=message)
        self._set(gates=(*self.state.gates[:-1], answer))
        if passed:
            return
        self._stop(f"The gate {gate} of wave {wave + 1} failed: {message}", now, by_gate=self.planned(gate))

    def set_paused(self, paused: bool) -> None:
        self._set(paused=paused)

    def abort(self, reason: str, now: float) -> None:
        """Begins nothing any more. Nodes that are updating complete it by themselves."""
        if not self.phase.is_final:
            self._end(Phase.ABORTED, now, reason)

    def reverse(self, reason: str, now: float) -> None:
        """Brings all nodes that were touched back, in the same waves."""
        again = self.state.reversing and self.phase is Phase.HALTED
        for node in [each for each in self.nodes.values() if again and each.state is NodeState.NOT_REVERSED]:
            self._change(replace(node, state=NodeState.FAILED))
        if again or (not self.state.reversing and self.phase is not Phase.ABORTED):
            self._close_gate(now)
            self._unstage()
            self._set(phase=Phase.REVERSING, since=now, reason=reason, wave=0, paused=False, reversing=True)
            self._restart_queue(now)

    def shift(self, seconds: float, now: float) -> None:
        """Moves all times, because the clock was set."""
        self.returned += seconds
        moved = [each + seconds if each else 0.0 for each in self.state.stage_times]
        gates = [replace(each, started=each.started + seconds) for each in self.state.gates]
        self._set(since=self.state.since + seconds, stage_times=tuple(moved), gates=tuple(gates))
        for name in self.busy:
            self._change(replace(self.nodes[name], since=self.nodes[name].since + seconds))
        self._restart_queue(now)

    # What to do

    def step(self, now: float) -> list[Action]:
        """Returns what to do now. Called after reports, and when `wakes_at` has come."""
        self._check_time(now)
        actions: list[Action] = []
        while True:
            before = (self.phase, self.state.wave, len(self.state.gates))
            actions += self._advance(now)
            if (self.phase, self.state.wave, len(self.state.gates)) == before:
                break
        stages, self._stages = self._stages, []
        gate = self.current_gate
        runs = gate and not self.planned(gate.gate).needs_approval
        return [*actions, *stages, *([RunGate(gate.wave, gate.gate, gate.started)] if gate and runs else [])]

    def _advance(self, now: float) -> Iterator[Action]:
        if self.phase in {Phase.RUNNING, Phase.REVERSING} or self._catches_up:
            yield from self._begin_nodes(now)
        if self.state.paused:
            return
        match self.phase:
            case Phase.RUNNING if not self._is_wave_waiting():
                if self._refill(now):
                    yield from self._begin_nodes(now)
                else:
                    self._complete_wave(now)
            case Phase.REVERSING if not self._is_wave_waiting():
                self._complete_reversal_wave(now)
            case Phase.SOAKING if now >= self.state.since + self.plan.soak_seconds and not self.unhealthy():
                self._set(phase=Phase.GATES, since=now)
            case Phase.GATES:
                self._next_gate(now)

    def _begin_nodes(self, now: float) -> Iterator[Action]:
        if self.state.paused:
            return
        for _ in range(MAX_STARTS):
            name = self.waiting.next(self.queue)
            if name is None:
                return
            node = self.nodes[name]
            done, busy, revision = NodeState.UPDATED, NodeState.UPDATING, self.plan.revision
            if self.state.reversing:
                done, busy, revision = NodeState.REVERSED, NodeState.REVERSING, node.source
            elif node.wave != self.state.wave and not self.phase.is_final:
                node = self._set_wave(node, self.state.wave)  # one that was away soaks with the wave that runs
            moved = self._move(node, done if node.report.passive else busy, now)
            if moved.report.desired == revision:  # a person was faster, or it was given it before
                if moved.state.is_busy:
                    self._judge(moved, now)
            else:
                self.nodes[name] = replace(
                    moved, report=replace(moved.report, desired=revision, applied=False, failure="")
                )
                yield Apply(name, revision)

    def pending_applies(self, now: float) -> list[Apply]:
        """Returns what nodes were to be given, and were not: the process ended before.

        If the roll-out was stopped meanwhile, a node that was not given the revision does not get it any more.
        """
        found = []
        passive = [node.name for node in self.nodes.values() if node.report.passive and node.state.is_done]
        for node in [self.nodes[name] for name in [*self.busy, *passive]]:
            is_reversal = node.state in {NodeState.REVERSING, NodeState.REVERSED}
            revision = node.source if is_reversal else self.plan.revision
            if node.report.desired == revision:
                continue
            if is_reversal or not (self.state.reversing or self.phase in {Phase.HALTED, Phase.ABORTED}):
                found.append(Apply(node.name, revision))
            elif not self.state.reversing:
                self._move(node, NodeState.PENDING, now)
        return found

    def _refill(self, now: float) -> bool:
        """Moves nodes of later waves into this one if none of its nodes was updated: nothing was learnt from it."""
        number = self.state.wave
        names = self.waves[number]
        if any(self._is_evidence(self.nodes[name]) for name in names):
            return False
        pending = [self.nodes[name] for wave in self.waves[number + 1 :] for name in wave]
        able = [node for node in pending if node.state is NodeState.PENDING and not node.report.is_away]
        for node in [each for each in able if not each.report.passive][: len(names)]:
            if self.state.stage_times[number] and not self.state.stage_times[node.wave]:
                self._set_stage_time(number, now)  # they have not been asked to download
                self._stages.append(Stage(node.name, self.plan.revision))
            self._consider(self._set_wave(node, number), now)
        return len(self.queue) > 0 or self.waiting.holds_up

    def _complete_wave(self, now: float) -> None:
        names = self.waves[self.state.wave]
        if any(self._is_evidence(self.nodes[name]) for name in names):
            self._set(phase=Phase.SOAKING, since=now)
        elif self.state.wave + 1 < self.wave_count:
            self._enter_wave(self.state.wave + 1, now)
        else:
            self._finish(now)

    def _finish(self, now: float) -> None:
        """Ends the last wave. It is a success if a node was updated, or if there is none that could be."""
        active = [
            node for node in self.nodes.values() if not node.report.passive and node.state is not NodeState.GONE
        ]
        if not active or any(self._is_evidence(node) for node in active):
            self._end(Phase.SUCCEEDED, now, "")
        elif any(node.state is NodeState.FAILED for node in active):
            self._stop("No node could be updated.", now)
        elif self.phase is not Phase.RUNNING:  # those that were updated are gone: it waits for the others
            self._set(phase=Phase.RUNNING, since=now)

    def _complete_reversal_wave(self, now: float) -> None:
        if self.state.wave + 1 < self.wave_count:
            self._set(wave=self.state.wave + 1)
            self._restart_queue(now)
            return
        stuck = [node.name for node in self.nodes.values() if node.state is NodeState.NOT_REVERSED]
        if stuck:
            self._end(Phase.HALTED, now, f"{self.state.reason} Could not be brought back: {_some(stuck)}.")
        else:
            self._end(Phase.REVERSED, now, self.state.reason)

    def _next_gate(self, now: float) -> None:
        if self.current_gate:
            return
        wave = self.state.wave
        passed = {each.gate for each in self.state.gates if each.wave == wave and each.passed}
        gate = next((each for each in self.plan.gates if each.name not in passed), None)
        if gate:
            self._set(gates=(*self.state.gates, GateResult(wave, gate.name, now)))
        elif wave + 1 < self.wave_count:
            self._enter_wave(wave + 1, now)
        else:
            self._finish(now)

    def _enter_wave(self, number: int, now: float) -> None:
        self._set(phase=Phase.RUNNING, since=now, wave=number)
        if self.plan.stage_timeout_seconds:
            for wave in range(number, min(number + 2, self.wave_count)):
                if not self.state.stage_times[wave]:
                    self._set_stage_time(wave, now)
                    self._stages += self._stages_of(wave)
        for name in self.waves[number]:
            self._consider(self.nodes[name], now)

    # What it waits for

    @property
    def current_gate(self) -> GateResult | None:
        """The gate that was asked and has not answered."""
        last = self.state.gates[-1] if self.state.gates else None
        return last if last and not last.answered and self.phase is Phase.GATES else None

    def unhealthy(self) -> list[str]:
        """Returns the nodes of the wave that were not seen healthy after the soak time."""
        nodes = [self.nodes[name] for name in self.waves[self.state.wave]]
        updated = [node for node in nodes if node.state is NodeState.UPDATED and not node.report.passive]
        # Without a soak, its report was enough.
        end = self.state.since + self.plan.soak_seconds if self.plan.soak_seconds else 0.0
        return [node.name for node in updated if not node.report.ready or node.report.seen < end]

    # Transitions

    def _judge(self, node: RolloutNode, now: float) -> None:
        """Decides whether a node that is being updated or brought back is done."""
        report, revision, done = node.report, self.plan.revision, NodeState.UPDATED
        if node.state is NodeState.REVERSING:
            revision, done = node.source, NodeState.REVERSED
        if report.desired == revision and report.failure:
            self._fail(node, report.failure, now)
        elif report.desired == revision and (report.passive or (report.applied and report.ready)):
            self._move(node, done, now)

    def _check_time(self, now: float) -> None:
        limit = self.plan.node_timeout_seconds
        while (name := next(iter(self.busy), None)) and now >= self.node_deadline(name):
            node = self.nodes[name]
            if node.report.opens > node.since:  # its window was closed: it has the whole time after it opens
                self._move(node, node.state, now)
                continue
            silent = "It stopped reporting during its update."
            self._fail(node, silent if node.report.offline else f"It was not done after {limit} s.", now)
        for node_name in self.waiting.due(now):
            self._consider(self.nodes[node_name], now)
        if self.phase is Phase.SOAKING and now >= self.health_deadline:
            for each in self.unhealthy():
                if self.phase is Phase.SOAKING:
                    self._fail(self.nodes[each], "It was not seen healthy after its update.", now)
        gate = self.current_gate
        if gate and not self.state.paused and now >= self.gate_deadline(gate):
            what = "approval" if self.planned(gate.gate).needs_approval else "answer"
            seconds = self.planned(gate.gate).timeout_seconds
            self.gate_answered(gate.wave, gate.gate, now, passed=False, message=f"no {what} within {seconds} s")

    def gate_deadline(self, gate: GateResult) -> float:
        planned = self.planned(gate.gate)
        return self._deadline(gate.started, planned.timeout_seconds + (0.0 if planned.needs_approval else GATE_GRACE))

    @property
    def health_deadline(self) -> float:
        return self._deadline(self.state.since, self.plan.soak_seconds + HEALTH_SECONDS)

    def planned(self, gate: str) -> GateSpec:
        return next(each for each in self.plan.gates if each.name == gate)

    def _fail(self, node: RolloutNode, cause: str, now: float) -> None:
        """Takes in a failure. A node that fails after others made the roll-out reverse is brought back with them."""
        was_reversing, has_failed = node.state is NodeState.REVERSING, bool(node.cause)
        self._move(node, NodeState.NOT_REVERSED if was_reversing else NodeState.FAILED, now, cause)
        self._consider(self.nodes[node.name], now)
        if was_reversing or has_failed or self.phase.is_final:  # a node that has failed before is counted
            return
        self._set(failures=self.state.failures + 1)
        if self.state.failures > self.plan.max_failures and not self.state.reversing:
            self._stop(f"{node.name}: {cause}", now)

    def _stop(self, reason: str, now: float, by_gate: GateSpec | None = None) -> None:
        """Stops because of a failure. A missing approval says nothing about the revision."""
        is_bad = by_gate is None or not by_gate.needs_approval
        self._set(failed=reason if is_bad else "")
        if is_bad and self.plan.on_failure == "reverse":
            self.reverse(reason, now)
        else:
            self._end(Phase.HALTED, now, reason)

    def _end(self, phase: Phase, now: float, reason: str) -> None:
        self._close_gate(now)
        self._unstage()
        self._set(phase=phase, since=now, reason=reason)
        self._restart_queue(now)

    def _close_gate(self, now: float) -> None:
        if gate := self.current_gate:
            closed = replace(gate, answered=now, message="The roll-out ended before it answered.")
            self._set(gates=(*self.state.gates[:-1], closed))


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
