"""States of roll-outs and of their nodes, and what is known of a node. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from aks_flex_rp.text_enum import StoredEnum

if TYPE_CHECKING:
    from aks_flex_rp.store.model import Document


class Phase(StoredEnum):
    RUNNING = "Running"
    SOAKING = "Soaking"
    GATES = "Gates"
    SUCCEEDED = "Succeeded"
    HALTED = "Halted"
    REVERSING = "Reversing"
    REVERSED = "Reversed"
    ABORTED = "Aborted"

    @property
    def is_final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Phase.SUCCEEDED, Phase.HALTED, Phase.REVERSED, Phase.ABORTED})


class NodeState(StoredEnum):
    PENDING = "Pending"
    UPDATING = "Updating"
    UPDATED = "Updated"
    FAILED = "Failed"
    REVERSING = "Reversing"
    REVERSED = "Reversed"
    NOT_REVERSED = "NotReversed"  # could not be brought back
    GONE = "Gone"  # deleted, in another pool, or overridden by a person

    @property
    def is_busy(self) -> bool:
        return self in {NodeState.UPDATING, NodeState.REVERSING}

    @property
    def is_done(self) -> bool:
        return self in {NodeState.UPDATED, NodeState.REVERSED}

    @property
    def is_touched(self) -> bool:
        return self in {NodeState.UPDATING, NodeState.UPDATED, NodeState.FAILED}


@dataclass(frozen=True)
class NodeReport:
    """What is known of a node."""

    ready: bool = True
    unready: bool = False  # it says that it is not Ready; a node of which that is unknown is neither
    desired: int = 0  # the revision that it was given
    applied: bool = True  # whether its machine has applied what it was given
    failure: str = ""  # why it did not
    offline: bool = False
    paused: bool = False  # its updates are paused
    opens: float = 0.0  # when its maintenance window opens; 0 if it is open
    seen: float = 0.0  # last heartbeat
    staged: int = 0  # the revision whose downloads it has
    not_staged: str = ""  # why its downloads failed
    passive: bool = False  # it has no machine that could be updated
    gone: str = ""  # why it no longer belongs to the roll-out

    @property
    def is_away(self) -> bool:
        return self.offline or self.paused


@dataclass(frozen=True)
class RolloutNode:
    name: str
    wave: int
    source: int = 0  # the revision to which a reversal brings it back
    state: NodeState = NodeState.PENDING
    since: float = 0.0  # of the state
    cause: str = ""
    domain: str = ""
    report: NodeReport = field(default_factory=NodeReport, compare=False)


@dataclass(frozen=True)
class GateResult:
    """A gate of a wave: when it began, and what it said."""

    wave: int
    gate: str
    started: float
    answered: float = 0.0  # 0 while it runs
    passed: bool = False
    message: str = ""

    @property
    def outcome(self) -> str:
        return ("Passed" if self.passed else "Failed") if self.answered else "Running"


@dataclass(frozen=True)
class RolloutState:
    """The stored state of a roll-out, besides its nodes."""

    phase: Phase = Phase.RUNNING
    wave: int = 0
    since: float = 0.0  # of the phase
    reason: str = ""
    paused: bool = False
    reversing: bool = False  # brings nodes back, also after the end
    failures: int = 0
    failed: str = ""  # why the revision is barred; empty if it is not
    stage_times: tuple[float, ...] = ()  # when the nodes of each wave were asked to stage
    gates: tuple[GateResult, ...] = ()


def state_of(document: Document) -> RolloutState:
    """Parses a stored state, which is empty before the first step. Ignores keys that other modules read."""
    return msgspec.convert(document, RolloutState)


@dataclass(frozen=True)
class Apply:
    """Brings a node to a revision."""

    node: str
    revision: int


@dataclass(frozen=True)
class Stage:
    """Has a node download what a revision needs."""

    node: str
    revision: int


@dataclass(frozen=True)
class RunGate:
    wave: int
    gate: str
    started: float


Action = Apply | Stage | RunGate
