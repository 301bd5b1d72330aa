"""Decides which job runs next, and when a failed one is retried. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.jobs.job_result import JobStatus

if TYPE_CHECKING:
    from aks_flex_node.agent.jobs.job_result import JobResult

RETRY_SECONDS = (60.0, 120.0, 300.0, 900.0, 1800.0)  # seconds after a work that failed, and after the next
REFUSED_RETRY_SECONDS = 3600.0  # the cluster may have become newer
LEAVE, UPDATE, RECOVER, REPAIR, CONNECT = "leave", "update", "recover", "repair", "connect"


@dataclass(frozen=True)
class SchedulerInput:
    """What is known at one moment."""

    deleted: bool = False  # twice, an interval apart
    unbootstrapping: bool = False  # it has begun to leave, and was stopped half-way
    may_unbootstrap: bool = True  # agent.unbootstrapOnDelete
    next_version: str = ""  # the version that waits to be taken
    unfinished: bool = False  # an update was stopped half-way, or the agent's own version is still to come
    window_open: bool = True  # the maintenance window is open
    credentials_lost: bool = False  # the node cannot speak to its cluster any more
    drifted: bool = False
    repair_enabled: bool = True  # driftPolicy
    paused: bool = False
    vpn_due: bool = False  # the certificate of the tunnel to the cluster is about to end, or another tunnel is meant


@dataclass
class JobHistory:
    """What became of each kind of work, and when it may be tried again."""

    results: dict[str, JobResult]
    failures: dict[str, int]
    due: dict[str, float]

    @classmethod
    def empty(cls) -> JobHistory:
        return cls({}, {}, {})

    def record(self, outcome: JobResult, now: float) -> None:
        kind, result = outcome.kind, JobStatus(outcome.result)
        self.results[kind] = outcome
        if result is JobStatus.DONE:
            self.failures.pop(kind, None)
            self.due.pop(kind, None)
        elif result is JobStatus.REFUSED:
            self.due[kind] = now + REFUSED_RETRY_SECONDS
        elif result is JobStatus.WAITS:
            self.due[kind] = now + RETRY_SECONDS[0]
        elif result is JobStatus.FAILED:
            self.postpone(kind, now)

    def postpone(self, kind: str, now: float) -> None:
        """Not at once again, and less and less often."""
        count = self.failures.get(kind, 0)
        self.failures[kind] = count + 1
        self.due[kind] = now + RETRY_SECONDS[min(count, len(RETRY_SECONDS) - 1)]

    def is_due(self, kind: str, now: float) -> bool:
        return now >= self.due.get(kind, 0.0)

    def forget(self, kind: str) -> None:
        """It is about something else now."""
        for each in (self.results, self.failures, self.due):
            each.pop(kind, None)


def next_job(wants: SchedulerInput, memory: JobHistory, now: float) -> str:
    """The kind of work that comes next; nothing when all is well, or nothing can be done now."""
    if (wants.unbootstrapping or (wants.deleted and wants.may_unbootstrap)) and memory.is_due(LEAVE, now):
        return LEAVE
    if wants.deleted or wants.unbootstrapping:
        return ""  # nobody repairs what is being taken apart
    wanted = {
        UPDATE: _is_update_due(wants, memory),
        RECOVER: wants.credentials_lost,
        REPAIR: wants.drifted and wants.repair_enabled and not wants.paused,
        CONNECT: wants.vpn_due,  # paused or not: without it the node would be lost
    }
    return next((kind for kind, is_wanted in wanted.items() if is_wanted and memory.is_due(kind, now)), "")


def _is_update_due(wants: SchedulerInput, memory: JobHistory) -> bool:
    outcome = memory.results.get(UPDATE)
    if wants.unfinished or not wants.next_version:
        return wants.unfinished
    if outcome is None or outcome.version != wants.next_version:
        return True
    may_again = {
        JobStatus.WAITS: wants.window_open and not wants.paused,
        JobStatus.FAILED: outcome.again,
        JobStatus.REFUSED: outcome.again,  # the cluster may have become newer
    }
    return may_again.get(JobStatus(outcome.result), False)
