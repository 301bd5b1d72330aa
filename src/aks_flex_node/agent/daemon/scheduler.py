"""Decides which job runs next, and when a failed one is retried."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.agent import self_update
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.config.config_store import JOURNAL_FILE
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import JOBS, Job, SchedulerInput
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.paths import UPDATE_JOURNAL, state_file
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import MachineError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import MaintenanceWindow
    from aks_flex_node.agent.daemon.drift_monitor import DriftMonitor
    from aks_flex_node.agent.managed_node import ManagedNode

RETRY_SECONDS = (60.0, 120.0, 300.0, 900.0, 1800.0)  # seconds after a job that failed, and after the next
REFUSED_RETRY_SECONDS = 3600.0  # the cluster may have become newer


@dataclass
class JobHistory:
    """The last result of each kind of job, and when it may be tried again."""

    results: dict[JobKind, JobResult]
    failures: dict[JobKind, int]
    due: dict[JobKind, float]

    @classmethod
    def empty(cls) -> JobHistory:
        return cls({}, {}, {})

    def record(self, outcome: JobResult, now: float) -> None:
        kind, result = outcome.kind, outcome.result
        self.results[kind] = outcome
        if result is JobStatus.DONE:
            self.failures.pop(kind, None)
            self.due.pop(kind, None)
        elif result is JobStatus.REFUSED:
            self.due[kind] = now + REFUSED_RETRY_SECONDS
        elif result is JobStatus.DEFERRED:
            self.due[kind] = now + RETRY_SECONDS[0]
        elif result is JobStatus.FAILED:
            self.postpone(kind, now)

    def postpone(self, kind: JobKind, now: float) -> None:
        """Not at once again, and less and less often."""
        count = self.failures.get(kind, 0)
        self.failures[kind] = count + 1
        self.due[kind] = now + RETRY_SECONDS[min(count, len(RETRY_SECONDS) - 1)]

    def is_due(self, kind: JobKind, now: float) -> bool:
        return now >= self.due.get(kind, 0.0)

    def forget(self, kind: JobKind) -> None:
        """It is about something else now."""
        for each in (self.results, self.failures, self.due):
            each.pop(kind, None)


def next_job(wants: SchedulerInput, history: JobHistory, now: float) -> Job | None:
    """The job that comes next; None when all is well, or nothing can be done now."""
    leaving = wants.deleted or wants.unbootstrapping  # nobody repairs what is being taken apart
    candidates = (job for job in JOBS if job.while_leaving or not leaving)
    wanted = (job for job in candidates if job.is_wanted(wants, history.results.get(job.kind)))
    return next((job for job in wanted if history.is_due(job.kind, now)), None)


def scheduler_input(
    node: ManagedNode, drift: DriftMonitor, *, deleted: bool, credentials_lost: bool
) -> SchedulerInput:
    """What is known of the node at this moment."""
    config, versions = node.config, node.versions
    policy = versions.desired_config(config).update_policy  # what is to come says when it may
    return SchedulerInput(
        deleted=deleted,
        unbootstrapping=node_state.read(node.host, state_file(config.paths.data_dir)).phase is Phase.RESETTING,
        may_unbootstrap=config.agent.unbootstrap_on_delete,
        next_version=versions.next,
        unfinished=has_unfinished_update(node),
        window_open=_is_window_open(policy.maintenance_window, node.now()),
        credentials_lost=credentials_lost,
        drifted=bool(drift.repairable_subjects),
        repair_enabled=config.drift_policy == "repair",
        paused=policy.paused,
        vpn_due=drift.vpn_due,
    )


def has_unfinished_update(node: ManagedNode) -> bool:
    """Whether a job was stopped half-way, or the agent's own version is still to come."""
    if any(node.host.stat(path) is not None for path in (UPDATE_JOURNAL, JOURNAL_FILE)):
        return True
    # One that stays in the foreground has no service of its own, and nobody brings it another version.
    has_service = managed_components(node.engine.ledger, node.config) is not SEQUENCE
    return has_service and self_update.is_due(node.host, node.config)


def _is_window_open(window: MaintenanceWindow, now: float) -> bool:
    try:
        return admission.next_opening(window, datetime.fromtimestamp(now, timezone.utc)) is None
    except MachineError:
        return True  # the update itself says what is wrong with it
