"""Decides which job runs next and when a failed job is retried. Without I/O."""

from __future__ import annotations

from dataclasses import field

from aks_flex_node.agent.job_records.job_result import (
    JOB_KILLED,
    WAITING_FOR_NODE_DELETION,
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.agent.jobs.registry import JOBS, Job, SchedulerInput
from aks_flex_node.lean_dataclass import dataclass

RETRY_SECONDS = (60.0, 120.0, 300.0, 900.0, 1800.0)  # delays after consecutive failures
KILLED_RETRY_SECONDS = (2.0, 10.0, *RETRY_SECONDS)  # nothing is known to be wrong with what it did
RECOVERY_PAUSES = (0.0, 0.0, 60.0, 60.0, 300.0)  # after each recovery within RECOVERY_PERIOD: the loss may persist
RECOVERY_PERIOD = 1800.0
REFUSED_RETRY_SECONDS = 3600.0  # the cluster may have been upgraded
DELAYS = {JobStatus.REFUSED: REFUSED_RETRY_SECONDS, JobStatus.DEFERRED: RETRY_SECONDS[0]}


@dataclass
class JobHistory:
    """The last result of each kind of job, and when it may run again."""

    results: dict[JobKind, JobResult]
    failures: dict[JobKind, int]
    due: dict[JobKind, float]
    recoveries: list[float] = field(default_factory=list)  # times of recent recoveries

    @classmethod
    def empty(cls) -> JobHistory:
        return cls({}, {}, {})

    def record(self, outcome: JobResult, now: float) -> None:
        kind, result = outcome.kind, outcome.result
        self.results[kind] = outcome
        self.due.pop(kind, None)
        if result is JobStatus.DONE:
            self.failures.pop(kind, None)
            if kind is JobKind.RECOVER:
                # Delays the next recovery if several did not last: each of them restarts the kubelet.
                self.recoveries = [*(each for each in self.recoveries if now - each < RECOVERY_PERIOD), now]
                if pause := RECOVERY_PAUSES[min(len(self.recoveries), len(RECOVERY_PAUSES)) - 1]:
                    self.due[JobKind.RECOVER] = now + pause
        elif result in DELAYS:
            self.due[kind] = now + DELAYS[result]
        elif result is JobStatus.FAILED:
            self.postpone(kind, now, KILLED_RETRY_SECONDS if outcome.reason == JOB_KILLED else RETRY_SECONDS)

    def postpone(self, kind: JobKind, now: float, delays: tuple[float, ...] = RETRY_SECONDS) -> None:
        """Postpones the next run with backoff."""
        count = self.failures.get(kind, 0)
        self.failures[kind] = count + 1
        self.due[kind] = now + delays[min(count, len(delays) - 1)]

    def is_due(self, kind: JobKind, now: float) -> bool:
        return now >= self.due.get(kind, 0.0)

    def hasten(self, kind: JobKind) -> None:
        """Allows the next run now, because what the last one waited for has happened."""
        self.due.pop(kind, None)

    def forget(self, kind: JobKind) -> None:
        """Resets the history of a kind of job, for example after a new configuration arrived."""
        for each in (self.results, self.failures, self.due):
            each.pop(kind, None)


def next_job(inputs: SchedulerInput, history: JobHistory, now: float) -> Job | None:
    """Returns the next job to run, or None when no job is required or due."""
    leaving = inputs.deleted or inputs.replaced or inputs.unbootstrapping  # no repairs during unbootstrap
    candidates = (job for job in JOBS if job.while_leaving or not leaving)
    required = (job for job in candidates if job.is_required(inputs, history.results.get(job.kind)))
    return next((job for job in required if history.is_due(job.kind, now) or _is_awaited(job, inputs, history)), None)


def _is_awaited(job: Job, inputs: SchedulerInput, history: JobHistory) -> bool:
    """Returns whether what an update waited for has happened."""
    last = history.results.get(job.kind)
    released = job.kind is JobKind.UPDATE and inputs.node_released
    return released and last is not None and last.reason == WAITING_FOR_NODE_DELETION
