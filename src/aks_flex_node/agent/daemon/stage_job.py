"""The staging job in the daemon: it runs beside other jobs in a unit of its own, with retries, and is stopped before
an update or the removal of the node.
"""

from __future__ import annotations

import contextlib
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import staging_config
from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import STAGE_UNIT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.runner import JobRunner
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import StopUnit
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.daemon.scheduler import JobHistory
    from aks_flex_node.agent.managed_node import ManagedNode
    from aks_flex_node.host.host import Host

FAILURES = frozenset((JobStatus.FAILED, JobStatus.REFUSED))
MAX_TARGETS = 10  # configurations that are staged within TARGETS_SECONDS, so that a provider cannot order downloads
TARGETS_SECONDS = 3600.0  # for ever by changing the next one all the time
PREEMPTING_JOBS = frozenset((JobKind.UPDATE, JobKind.UNBOOTSTRAP))  # they use or remove what is staged


@dataclass
class StagingJob:
    runner: JobRunner
    history: JobHistory
    _target: str = ""  # what the running job was started for
    _is_stopped: bool = False  # by the daemon itself
    _begun: list[float] = field(default_factory=list)  # when recent configurations were begun

    @classmethod
    def on(cls, host: Host, program: str, on_result: Callable[[JobResult], None], history: JobHistory) -> StagingJob:
        runner = JobRunner(
            host, program, on_result, unit=STAGE_UNIT, result_file=job_result.STAGING, adopted_kind=JobKind.STAGE
        )
        return cls(runner, history)

    def resume(self, node: ManagedNode, now: float) -> None:
        """Waits for a job that an earlier daemon started, or keeps the backoff of the last one."""
        pending = staging_config.read_status(node.host, node.config).pending
        if self.runner.adopt_running():
            self._target = pending
        elif (known := job_result.STAGING.read(node.host)) and known.version == pending != "":
            self.history.record(known, now)

    def forget_outdated(self, pending: str) -> None:
        """Resets retries and result of another configuration than the one to be staged."""
        last = self.history.results.get(JobKind.STAGE)
        if last and last.version != pending:
            self.history.forget(JobKind.STAGE)

    def start(self, pending: str, now: float) -> bool:
        """Starts the job; returns False if it is running already, or has staged too many configurations lately."""
        is_another = pending not in {"", staging_config.LEFTOVERS, self._target}
        recent = [each for each in self._begun if now - each < TARGETS_SECONDS]
        if (is_another and len(recent) >= MAX_TARGETS) or not self.runner.start(JobKind.STAGE):
            return False
        self._begun = [*recent, now] if is_another else recent
        self._target, self._is_stopped = pending, False
        return True

    def stop_for(self, kind: JobKind) -> None:
        """Stops the running job before another one that needs the staged programs. What it downloaded is kept."""
        if self.runner.running and not self._is_stopped and kind in PREEMPTING_JOBS:
            self._is_stopped = True
            with contextlib.suppress(MachineError):  # the artifact store locks what it writes
                self.runner.host.apply(StopUnit(STAGE_UNIT))

    def finish(self, outcome: JobResult, node: ManagedNode, now: float) -> JobResult | None:
        """Records the result; returns None for a job that the daemon stopped itself."""
        self.runner.clear()
        if self._is_stopped and not outcome.is_done:
            return None
        result = outcome if outcome.version else replace(outcome, version=self._target)
        self.history.record(result, now)
        if result.is_done and staging_config.read_status(node.host, node.config).pending == result.version:
            self.history.postpone(JobKind.STAGE, now)  # an immediate retry would not get further
        return result
