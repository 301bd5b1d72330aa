"""Tests of the scheduler: the next job, and jobs that are not repeated."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.daemon import scheduler
from aks_flex_node.agent.daemon.scheduler import REFUSED_RETRY_SECONDS, RETRY_SECONDS, JobHistory
from aks_flex_node.agent.job_records.job_result import JOB_KILLED, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import JOBS, SchedulerInput, find_job

LATER = 1e9


def next_job(needs: SchedulerInput, history: JobHistory | None = None, now: float = 0.0) -> JobKind | None:
    job = scheduler.next_job(needs, history or JobHistory.empty(), now)
    return job.kind if job else None


def test_every_job_kind_is_registered_once_and_found_by_name() -> None:
    assert sorted(job.kind.value for job in JOBS) == sorted(
        kind.value for kind in JobKind if kind is not JobKind.ADOPTED
    )
    assert all(find_job(job.kind.value) is job for job in JOBS)


def after(*results: JobResult) -> JobHistory:
    history = JobHistory.empty()
    for result in results:
        history.record(result, 0.0)
    return history


def update(result: JobStatus, *, retryable: bool = False) -> JobResult:
    return JobResult(JobKind.UPDATE, result, version="2", retryable=retryable)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (SchedulerInput(), None),
        (SchedulerInput(next_version="2"), JobKind.UPDATE),
        (SchedulerInput(drifted=True), JobKind.REPAIR),
        (SchedulerInput(drifted=True, repair_enabled=False), None),
        (SchedulerInput(drifted=True, paused=True), None),
        (SchedulerInput(drifted=True, credentials_lost=True), JobKind.RECOVER),
        (SchedulerInput(drifted=True, vpn_due=True), JobKind.REPAIR),
        (SchedulerInput(vpn_due=True, paused=True), JobKind.RENEW_VPN),
        (SchedulerInput(vpn_due=True, deleted=True, may_unbootstrap=False), None),
        (SchedulerInput(deleted=True, next_version="2", credentials_lost=True, drifted=True), JobKind.UNBOOTSTRAP),
        (SchedulerInput(deleted=True, may_unbootstrap=False, next_version="2", drifted=True), None),
        (SchedulerInput(unbootstrapping=True, may_unbootstrap=False), JobKind.UNBOOTSTRAP),
    ],
    ids=str,
)
def test_most_important_job_is_scheduled_first(needs: SchedulerInput, expected: JobKind | None) -> None:
    assert next_job(needs) == expected


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED])
def test_failed_config_version_is_not_retried(result: JobStatus) -> None:
    assert next_job(SchedulerInput(next_version="2"), after(update(result)), LATER) is None


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED, JobStatus.DEFERRED])
def test_next_config_version_is_scheduled_after_a_failed_one(result: JobStatus) -> None:
    history = after(update(result))
    history.forget(JobKind.UPDATE)
    assert next_job(SchedulerInput(next_version="3", window_open=False), history) == JobKind.UPDATE


def test_unfinished_update_is_scheduled_despite_an_earlier_rollback() -> None:
    history = after(update(JobStatus.ROLLED_BACK))
    assert next_job(SchedulerInput(unfinished=True), history, LATER) == JobKind.UPDATE


def test_deferred_update_is_scheduled_when_the_window_opens() -> None:
    history = after(update(JobStatus.DEFERRED))
    assert next_job(SchedulerInput(next_version="2", window_open=False), history, LATER) is None
    assert next_job(SchedulerInput(next_version="2", paused=True), history, LATER) is None
    assert next_job(SchedulerInput(next_version="2"), history, LATER) == JobKind.UPDATE


FAILED_UPDATE = update(JobStatus.FAILED, retryable=True)
LEAVES = SchedulerInput(unbootstrapping=True, next_version="2", credentials_lost=True, drifted=True)


@pytest.mark.parametrize(
    ("needs", "results", "delay"),
    [
        (SchedulerInput(next_version="2"), [FAILED_UPDATE], RETRY_SECONDS[0]),
        (SchedulerInput(next_version="2"), [FAILED_UPDATE] * 9, RETRY_SECONDS[-1]),
        (SchedulerInput(next_version="2"), [update(JobStatus.REFUSED, retryable=True)], REFUSED_RETRY_SECONDS),
        (LEAVES, [JobResult(JobKind.UNBOOTSTRAP, JobStatus.FAILED, retryable=True)], RETRY_SECONDS[0]),
        (
            SchedulerInput(drifted=True),
            [JobResult(JobKind.REPAIR, JobStatus.FAILED, retryable=True)],
            RETRY_SECONDS[0],
        ),
        (SchedulerInput(vpn_due=True), [JobResult(JobKind.RENEW_VPN, JobStatus.FAILED)], RETRY_SECONDS[0]),
    ],
    ids=["update", "often", "refused, as for version skew", "unbootstrap", "repair", "vpn"],
)
def test_failed_job_is_retried_after_a_delay(needs: SchedulerInput, results: list[JobResult], delay: float) -> None:
    assert next_job(needs, after(*results), delay - 1) is None, "and no other job takes its place"
    assert next_job(needs, after(*results), delay) == results[0].kind


def test_killed_job_is_retried_soon_at_first() -> None:
    history = JobHistory.empty()
    killed = JobResult(JobKind.UPDATE, JobStatus.FAILED, JOB_KILLED, retryable=True)
    delays = []
    for _ in range(4):
        history.record(killed, 0.0)
        delays.append(history.due[JobKind.UPDATE])
    assert delays == [2.0, 10.0, 60.0, 120.0]


def test_recoveries_that_do_not_last_are_repeated_slowly() -> None:
    history, lost, now, started = JobHistory.empty(), SchedulerInput(credentials_lost=True), 0.0, 0
    while now < 3600.0:
        if next_job(lost, history, now):
            started += 1
            history.record(JobResult(JobKind.RECOVER, JobStatus.DONE, "Recovered"), now)
        now += 5.0
    assert 5 <= started <= 20


def test_second_loss_is_recovered_at_once() -> None:
    history = after(JobResult(JobKind.RECOVER, JobStatus.DONE, "Recovered"))
    assert next_job(SchedulerInput(credentials_lost=True), history, 5.0) is JobKind.RECOVER
