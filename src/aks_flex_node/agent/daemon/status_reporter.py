"""Collects status reports and sends them to the config source in a separate thread: immediately after a change,
else as a heartbeat.
"""

from __future__ import annotations

import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import self_update, staging_config
from aks_flex_node.agent.daemon.conditions import ReportInput
from aks_flex_node.agent.daemon.stage_job import FAILURES
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.job_result import JOB_EXITED, JOB_KILLED, JobKind, JobResult, JobStatus
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.agent.daemon.daemon_state import DaemonState
    from aks_flex_node.agent.daemon.drift_monitor import DriftMonitor
    from aks_flex_node.agent.daemon.scheduler import JobHistory
    from aks_flex_node.agent.managed_node import ManagedNode
    from aks_flex_node.agent.stored_config import ConfigVersions

FAILED_RESULTS = frozenset(each.value for each in (JobStatus.FAILED, JobStatus.REFUSED, JobStatus.ROLLED_BACK))
HEARTBEAT_SECONDS = 300.0
RETRY_SECONDS = (5.0, 15.0, 60.0, 180.0)  # delays after consecutive failures
MAX_RETRY_AFTER = 3600.0  # upper limit of Retry-After, in seconds
MIN_INTERVAL = 1.0  # minimum seconds between reports


def report_input(
    node: ManagedNode,
    drift: DriftMonitor,
    state: DaemonState,
    health: NodeHealth,
    history: JobHistory,
    running: JobKind | None,
) -> ReportInput:
    update, connect = history.results.get(JobKind.UPDATE), history.results.get(JobKind.RENEW_VPN)
    staging, staged = history.results.get(JobKind.STAGE), staging_config.read_status(node.host, node.config)
    versions = node.versions
    failed = _failed_update(node, versions.next)
    return ReportInput(
        state,
        health,
        versions.current,
        versions.next,
        update,
        failed,
        running,
        drift.conflicting_subjects,
        _agent_failure(node, update),
        connect if connect and drift.vpn_due and connect.result is JobStatus.FAILED else None,
        staged.staged_revision,
        staging if staging and staging.result in FAILURES and staging.version == staged.pending != "" else None,
        _failed_version(failed, state, versions),
    )


def _failed_update(node: ManagedNode, pending: str) -> JobResult | None:
    """Returns the result of the pending version if its update was rolled back."""
    known = update_journal.FAILURE.read(node.host)
    if known is None or known.version != pending:
        return None
    result = JobStatus.ROLLED_BACK
    return JobResult(JobKind.UPDATE, result, known.reason, known.message, version=known.version, at=known.at)


def _failed_version(rolled_back: JobResult | None, state: DaemonState, versions: ConfigVersions) -> str:
    """Returns the version whose last update failed, was rolled back or was refused. A job that ended without a result
    says nothing about its version.
    """
    last = state.unapplied
    if rolled_back:
        version = rolled_back.version
    elif last.get("result") in FAILED_RESULTS and last.get("reason") not in {JOB_KILLED, JOB_EXITED}:
        version = last.get("version") or versions.next  # an error before the configuration was read names none
    else:
        return ""
    return version if version in {versions.next, versions.current} and version.isdecimal() else ""


def _agent_failure(node: ManagedNode, update: JobResult | None) -> str:
    """Returns why the configured agent version does not run: it failed, or could not be installed yet."""
    if known := self_update.failure_reason(node.host, node.config):
        return known
    late = update and update.result is JobStatus.FAILED and update.version == node.versions.current
    if not (update and late and self_update.is_due(node.host, node.config)):
        return ""
    return f"{update.message} {update.hint}".strip()


@dataclass
class StatusReporter:
    source: ConfigSource
    clock: Callable[[], float] = time.monotonic
    _latest: dict[str, Any] = field(default_factory=dict)
    _failures: int = 0
    _due: float = 0.0
    _soonest: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="status-reporter", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def update(self, report: dict[str, Any]) -> None:
        """Replaces the report to send; only the latest one is sent."""
        with self._changed:
            if report != self._latest:
                self._latest = report
                self._due = self._soonest if self._failures == 0 else self._due
                self._changed.notify()

    @property
    def is_due(self) -> bool:
        """Whether a report must be sent now."""
        return bool(self._latest) and self.clock() >= self._due

    def _run(self) -> None:
        while (report := self._next()) is not None:
            self.send(report)

    def _next(self) -> dict[str, Any] | None:
        with self._changed:
            while not self._stopped and not self.is_due:
                self._changed.wait(max(0.0, self._due - self.clock()) if self._latest else None)
            return None if self._stopped else self._latest

    def send(self, report: dict[str, Any]) -> None:
        try:
            self.source.report_status(report)
        except ProviderRequestError as error:
            self._schedule_next(report, failed=True, retry_after=error.result.retry_after or 0.0)
        except Exception:  # a failed report must not stop the thread; the poller reports the cause
            self._schedule_next(report, failed=True)
        else:
            self._schedule_next(report, failed=False)

    def _schedule_next(self, report: dict[str, Any], *, failed: bool, retry_after: float = 0.0) -> None:
        """Schedules the next report: a heartbeat after success, a retry with backoff after a failure."""
        with self._changed:
            now = self.clock()
            self._soonest = now + MIN_INTERVAL
            if failed:
                delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures, self._due = self._failures + 1, now + max(delay, min(retry_after, MAX_RETRY_AFTER))
            else:
                self._failures, self._due = 0, now + (HEARTBEAT_SECONDS if report == self._latest else MIN_INTERVAL)
