"""Tests of what runs after a job: an update of the agent, also while AKS has not allowed the update of the node."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.job_records.job_result import WAITING_FOR_NODE_DELETION, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import Job, run_job
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.host.records import RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.host.host import Host

DONE = JobResult(JobKind.UPDATE, JobStatus.DONE)
WAITING = JobResult(JobKind.UPDATE, JobStatus.DEFERRED, WAITING_FOR_NODE_DELETION)
CLOSED = JobResult(JobKind.UPDATE, JobStatus.DEFERRED, "MaintenanceWindowClosed")
FAILED = JobResult(JobKind.UPDATE, JobStatus.FAILED, "agent-update-failed")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[JobResult]]:
    written: list[JobResult] = []

    def write(_file: RecordFile[JobResult], _host: Host, result: JobResult) -> None:
        written.append(result)

    monkeypatch.setattr(RecordFile, "write", write)
    before = signal.getsignal(signal.SIGHUP)
    yield written
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("outcome", "updates"), [(DONE, True), (WAITING, True), (CLOSED, False), (FAILED, False)])
def test_agent_is_updated_also_while_the_node_waits_for_aks(
    results: list[JobResult], outcome: JobResult, updates: bool
) -> None:
    ran: list[JobResult] = []

    def update_agent(result: JobResult, _progress: ProgressReporter) -> JobResult:
        ran.append(result)
        return FAILED

    job = Job(JobKind.UPDATE, "", lambda *_: True, lambda *_: outcome, update_agent)
    run_job(job, (), ProgressReporter())
    assert ran == ([outcome] if updates else [])
    assert results == ([outcome, FAILED] if updates else [outcome])
