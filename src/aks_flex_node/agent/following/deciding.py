"""What is to be done next, if anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.works import Result

if TYPE_CHECKING:
    from aks_flex_node.agent.works import Outcome

AGAIN = (60.0, 120.0, 300.0, 900.0, 1800.0)  # seconds after a work that failed, and after the next
REFUSED_AGAIN = 3600.0  # the cluster may have become newer
LEAVE, UPDATE, RECOVER, REPAIR, CONNECT = "leave", "update", "recover", "repair", "connect"


@dataclass(frozen=True)
class Wants:
    """What is known at one moment."""

    deleted: bool = False  # twice, an interval apart
    leaving: bool = False  # it has begun to leave, and was stopped half-way
    may_leave: bool = True  # agent.unbootstrapOnDelete
    next: str = ""  # the version that waits to be taken
    unfinished: bool = False  # an update was stopped half-way, or the agent's own version is still to come
    window: bool = True  # the maintenance window is open
    lost: bool = False  # the node cannot speak to its cluster any more
    drifted: bool = False
    repairs: bool = True  # driftPolicy
    paused: bool = False
    worn: bool = False  # the certificate of the tunnel to the cluster is about to end, or another tunnel is meant


@dataclass
class Memory:
    """What became of each kind of work, and when it may be tried again."""

    outcomes: dict[str, Outcome]
    failures: dict[str, int]
    due: dict[str, float]

    @classmethod
    def empty(cls) -> Memory:
        return cls({}, {}, {})

    def note(self, outcome: Outcome, now: float) -> None:
        kind, result = outcome.kind, Result(outcome.result)
        self.outcomes[kind] = outcome
        if result is Result.DONE:
            self.failures.pop(kind, None)
            self.due.pop(kind, None)
        elif result is Result.REFUSED:
            self.due[kind] = now + REFUSED_AGAIN
        elif result is Result.WAITS:
            self.due[kind] = now + AGAIN[0]
        elif result is Result.FAILED:
            self.put_off(kind, now)

    def put_off(self, kind: str, now: float) -> None:
        """Not at once again, and less and less often."""
        count = self.failures.get(kind, 0)
        self.failures[kind] = count + 1
        self.due[kind] = now + AGAIN[min(count, len(AGAIN) - 1)]

    def is_due(self, kind: str, now: float) -> bool:
        return now >= self.due.get(kind, 0.0)

    def forget(self, kind: str) -> None:
        """It is about something else now."""
        for each in (self.outcomes, self.failures, self.due):
            each.pop(kind, None)


def choose(wants: Wants, memory: Memory, now: float) -> str:
    """The kind of work that comes next; nothing when all is well, or nothing can be done now."""
    if (wants.leaving or (wants.deleted and wants.may_leave)) and memory.is_due(LEAVE, now):
        return LEAVE
    if wants.deleted or wants.leaving:
        return ""  # nobody repairs what is being taken apart
    wanted = {
        UPDATE: _is_to_be_updated(wants, memory),
        RECOVER: wants.lost,
        REPAIR: wants.drifted and wants.repairs and not wants.paused,
        CONNECT: wants.worn,  # paused or not: without it the node would be lost
    }
    return next((kind for kind, is_wanted in wanted.items() if is_wanted and memory.is_due(kind, now)), "")


def _is_to_be_updated(wants: Wants, memory: Memory) -> bool:
    outcome = memory.outcomes.get(UPDATE)
    if wants.unfinished or not wants.next:
        return wants.unfinished
    if outcome is None or outcome.version != wants.next:
        return True
    may_again = {
        Result.WAITS: wants.window and not wants.paused,
        Result.FAILED: outcome.again,
        Result.REFUSED: outcome.again,  # the cluster may have become newer
    }
    return may_again.get(Result(outcome.result), False)
