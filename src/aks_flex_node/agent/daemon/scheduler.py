"""Decides which job runs next and when a failed job is retried."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.agent import self_update, staging_config
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.job_records.job_result import JOB_KILLED, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import JOBS, Job, SchedulerInput
from aks_flex_node.agent.paths import CONFIG_JOURNAL, UPDATE_JOURNAL
from aks_flex_node.agent.policy import UNBOOTSTRAP, read_policy
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.api.maintenance_window import next_opening
from aks_flex_node.errors import MachineError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from aks_flex_node.agent.daemon.drift_monitor import DriftMonitor
    from aks_flex_node.agent.managed_node import ManagedNode
    from aks_flex_node.settings.models import MaintenanceWindow

RETRY_SECONDS = (60.0, 120.0, 300.0, 900.0, 1800.0)  # delays after consecutive failures
KILLED_RETRY_SECONDS = (2.0, 10.0, *RETRY_SECONDS)  # nothing is known to be wrong with what it did
RECOVERY_PAUSES = (0.0, 0.0, 60.0, 60.0, 300.0)  # after each recovery within RECOVERY_PERIOD: the loss may persist
RECOVERY_PERIOD = 1800.0
REFUSED_RETRY_SECONDS = 3600.0  # the cluster may have been upgraded


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
        if result is JobStatus.DONE:
            self.failures.pop(kind, None)
            self.due.pop(kind, None)
            if kind is JobKind.RECOVER:
                # Delays the next recovery if several did not last: each of them restarts the kubelet.
                self.recoveries = [*(each for each in self.recoveries if now - each < RECOVERY_PERIOD), now]
                if pause := RECOVERY_PAUSES[min(len(self.recoveries), len(RECOVERY_PAUSES)) - 1]:
                    self.due[JobKind.RECOVER] = now + pause
        elif result is JobStatus.REFUSED:
            self.due[kind] = now + REFUSED_RETRY_SECONDS
        elif result is JobStatus.DEFERRED:
            self.due[kind] = now + RETRY_SECONDS[0]
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
    return next((job for job in required if history.is_due(job.kind, now)), None)


def scheduler_input(
    node: ManagedNode,
    drift: DriftMonitor,
    *,
    deleted: bool,
    credentials_lost: bool,
    replaced: bool = False,
    node_released: bool = False,
    operation_pending: bool = False,
) -> SchedulerInput:
    """Collects the facts by which the scheduler decides."""
    config, versions = node.config, node.versions
    policy = versions.desired_config(config).update_policy  # the policy of the pending configuration applies
    return SchedulerInput(
        deleted=deleted,
        replaced=replaced,
        unbootstrapping=node_state.load(node.host, config).phase is Phase.RESETTING,
        may_unbootstrap=config.agent.unbootstrap_on_delete,
        unbootstrap_forbidden=(deleted or replaced) and bool(read_policy(node.host).forbids(UNBOOTSTRAP)),
        next_version=versions.next if node.source.schedule else "",
        unfinished=has_unfinished_update(node),
        window_open=_is_window_open(policy.maintenance_window, node.now()),
        credentials_lost=credentials_lost,
        drifted=bool(drift.repairable_subjects),
        repair_enabled=config.drift_policy == "repair",
        paused=policy.paused,
        vpn_due=drift.vpn_due,
        node_released=node_released,
        operation_pending=operation_pending,
        staging=staging_config.read_status(node.host, config).pending if node.source.schedule else "",
    )


def has_unfinished_update(node: ManagedNode) -> bool:
    """Returns whether an update was interrupted, or a self-update is pending."""
    if any(node.host.stat(path) is not None for path in (UPDATE_JOURNAL, CONFIG_JOURNAL)):
        return True
    # A daemon in the foreground has no service and is not updated.
    has_service = managed_components(node.engine.ledger, node.config) is not SEQUENCE
    return has_service and self_update.is_due(node.host, node.config)


def _is_window_open(window: MaintenanceWindow, now: float) -> bool:
    try:
        return next_opening(window, datetime.fromtimestamp(now, timezone.utc)) is None
    except MachineError:
        return True  # the update job reports the error
