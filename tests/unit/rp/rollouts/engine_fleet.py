"""Simulated nodes of a roll-out: they carry out what it decides, and report what a test says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from aks_flex_rp.rollouts.active_rollout import state_document
from aks_flex_rp.rollouts.commands import PlannedNode, plan_waves
from aks_flex_rp.rollouts.engine import Rollout
from aks_flex_rp.rollouts.gate_specs import GateSpec
from aks_flex_rp.rollouts.spec import RolloutProperties, Share
from aks_flex_rp.rollouts.states import (
    Apply,
    NodeReport,
    NodeState,
    Phase,
    RolloutNode,
    RolloutState,
    RunGate,
    Stage,
    state_of,
)

ALL = Share(percent=100)


def plan_of(**changes: Any) -> RolloutProperties:
    values = {"revision": 2, "waves": [Share(1), Share(percent=50), ALL], "soak_seconds": 60, "on_failure": "halt"}
    values |= {"node_timeout_seconds": 300, "stage_timeout_seconds": 0}
    return RolloutProperties().model_copy(update={**values, **changes})


def gate_of(name: str, *, approval: bool = False) -> GateSpec:
    kind: dict[str, Any] = {"approval": {}} if approval else {"webhook": {"receiver": "ci"}}
    return GateSpec.model_validate({"name": name, "timeoutSeconds": 60, **kind})


PLAN = plan_of()
AT_ONCE: dict[str, Any] = {"waves": [ALL], "max_unavailable": Share(9)}
ALL_AT_ONCE = plan_of(**AT_ONCE)


@dataclass
class Fleet:
    """Carries out what a roll-out decides, and answers for its nodes."""

    plan: RolloutProperties
    size: int
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    now: float = 1000.0
    applied: list[Apply] = field(default_factory=list)
    gates: list[RunGate] = field(default_factory=list)
    staged: list[Stage] = field(default_factory=list)
    known: dict[str, NodeReport] = field(default_factory=dict)  # what the records of the nodes say

    def __post_init__(self) -> None:
        nodes = [PlannedNode(name, self.labels.get(name, {})) for name in self.names]
        domains = {node.name: self.plan.domain_of(node.labels) for node in nodes}
        waves = plan_waves(self.plan, nodes)
        members = [
            RolloutNode(name, number, 1, domain=domains[name], report=NodeReport(desired=1, seen=self.now))
            for number, wave in enumerate(waves)
            for name in wave
        ]
        self.known = {node.name: node.report for node in members}
        self.rollout = Rollout(self.plan, members, RolloutState(), self.now)

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.size)]

    @property
    def phase(self) -> Phase:
        return self.rollout.phase

    @property
    def revisions(self) -> dict[str, int]:
        return dict.fromkeys(self.names, 1) | {each.node: each.revision for each in self.applied}

    def step(self) -> list[str]:
        """Returns the names of the nodes that begin."""
        actions = self.rollout.step(self.now)
        begun = [each for each in actions if isinstance(each, Apply)]
        self.apply(begun)
        self.gates += [each for each in actions if isinstance(each, RunGate)]
        self.staged += [each for each in actions if isinstance(each, Stage)]
        return [each.node for each in begun]

    def apply(self, applies: list[Apply]) -> None:
        for each in applies:
            assert self.known[each.node].desired != each.revision, "given twice"
            self.applied.append(each)
            self.known[each.node] = replace(self.known[each.node], desired=each.revision, applied=False, failure="")

    def report(self, name: str, **values: Any) -> None:
        known: dict[str, Any] = {"desired": self.revisions[name], "seen": self.now}
        self.known[name] = NodeReport(**{**known, **values})
        self.rollout.report(name, self.known[name], self.now)

    def succeed(self, *names: str) -> None:
        for name in names:
            self.report(name)

    def update_first_node(self) -> None:
        """Lets the first node begin and succeed, and what follows from it begin."""
        self.step()
        self.succeed("n0")
        self.step()

    def add(self, name: str) -> None:
        self.known[name] = NodeReport(desired=1, seen=self.now)
        self.rollout.add(RolloutNode(name, 0, 1, report=self.known[name]), self.now)

    def restart(self) -> None:
        """Loads the roll-out from what is stored, as another replica does."""
        old = self.rollout
        nodes = [replace(node, report=self.known[node.name]) for node in old.nodes.values()]
        stored = json.loads(json.dumps(state_document(old.state, old.queue.limit, len(old.nodes))))
        self.rollout = Rollout(self.plan, nodes, state_of(stored), self.now)
        for node in nodes:
            self.rollout.report(node.name, node.report, self.now)
        self.apply(self.rollout.pending_applies(self.now))

    def crash(self) -> None:
        """Loses the replica after it has stored a decision, and before it carries it out."""
        self.rollout.step(self.now)
        self.restart()

    def settle(self, rounds: int = 50) -> None:
        """Lets all nodes that were away return after the end."""
        for _ in range(rounds):
            self.step()
            for name in [*self.rollout.busy]:
                self.succeed(name)

    def run(self, rounds: int = 200) -> None:
        """Lets all nodes succeed until the roll-out ends."""
        for _ in range(rounds):
            self.step()
            if self.phase.is_final:
                return
            if gate := self.rollout.current_gate:
                self.rollout.gate_answered(gate.wave, gate.gate, self.now, passed=True)
            for name in self.names:
                node = self.rollout.nodes[name]
                if (
                    node.state in {NodeState.UPDATING, NodeState.REVERSING, NodeState.UPDATED}
                    and not node.report.gone
                ):
                    self.succeed(name)
            self.now += 60.0


def state(fleet: Fleet, name: str) -> NodeState:
    return fleet.rollout.nodes[name].state
