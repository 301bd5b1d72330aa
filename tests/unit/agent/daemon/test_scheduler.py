"""Tests of the scheduler: the next job, and jobs that are not repeated."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.daemon import scheduler
from aks_flex_node.agent.daemon.scheduler import REFUSED_RETRY_SECONDS, RETRY_SECONDS, JobHistory
from aks_flex_node.agent.job_records.job_result import JOB_KILLED, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import JOBS, SchedulerInput, find_job


def next_job(wants: SchedulerInput, history: JobHistory, now: float) -> JobKind | None:
    job = scheduler.next_job(wants, history, now)
    return job.kind if job else None


def test_every_job_kind_is_registered_once_and_found_by_name() -> None:
    assert sorted(job.kind.value for job in JOBS) == sorted(
        kind.value for kind in JobKind if kind is not JobKind.ADOPTED
    )
    assert all(find_job(job.kind.value) is job for job in JOBS)


def after(*outcomes: JobResult, now: float = 0.0) -> JobHistory:
    memory = JobHistory.empty()
    for outcome in outcomes:
        memory.record(outcome, now)
    return memory


def update(result: JobStatus, version: str = "2", *, retryable: bool = False) -> JobResult:
    return JobResult(JobKind.UPDATE, result, version=version, retryable=retryable)


def test_scheduler_starts_no_job_on_a_healthy_node() -> None:
    assert next_job(SchedulerInput(), JobHistory.empty(), 0.0) is None


def test_no_repair_is_scheduled_while_unbootstrap_awaits_its_retry() -> None:
    wants = SchedulerInput(unbootstrapping=True, next_version="2", credentials_lost=True, drifted=True)
    memory = after(JobResult(JobKind.UNBOOTSTRAP, JobStatus.FAILED, retryable=True))
    assert next_job(wants, memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(wants, memory, RETRY_SECONDS[0]) == JobKind.UNBOOTSTRAP


def test_new_config_schedules_an_update() -> None:
    assert next_job(SchedulerInput(next_version="2"), JobHistory.empty(), 0.0) == JobKind.UPDATE


def test_unfinished_update_is_scheduled_despite_an_earlier_rollback() -> None:
    assert next_job(SchedulerInput(unfinished=True), after(update(JobStatus.ROLLED_BACK)), 1e9) == JobKind.UPDATE


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED])
def test_failed_config_version_is_not_retried(result: JobStatus) -> None:
    assert next_job(SchedulerInput(next_version="2"), after(update(result)), 1e9) is None


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED, JobStatus.DEFERRED])
def test_next_config_version_is_scheduled_after_a_failed_one(result: JobStatus) -> None:
    memory = after(update(result))
    memory.forget(JobKind.UPDATE)
    assert next_job(SchedulerInput(next_version="3", window_open=False), memory, 0.0) == JobKind.UPDATE


def test_retryable_update_is_retried_after_the_first_delay() -> None:
    memory = after(update(JobStatus.FAILED, retryable=True))
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[0]) == JobKind.UPDATE


def test_repeated_update_failures_are_retried_at_the_longest_delay() -> None:
    memory = after(*[update(JobStatus.FAILED, retryable=True)] * 9)
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[-1] - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[-1]) == JobKind.UPDATE


def test_update_refused_for_version_skew_is_retried_every_hour() -> None:
    memory = after(update(JobStatus.REFUSED, retryable=True))
    assert next_job(SchedulerInput(next_version="2"), memory, REFUSED_RETRY_SECONDS - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, REFUSED_RETRY_SECONDS) == JobKind.UPDATE


def test_deferred_update_is_scheduled_when_the_window_opens() -> None:
    memory = after(update(JobStatus.DEFERRED))
    assert next_job(SchedulerInput(next_version="2", window_open=False), memory, 1e9) is None
    assert next_job(SchedulerInput(next_version="2"), memory, 1e9) == JobKind.UPDATE


def test_paused_update_is_not_scheduled() -> None:
    assert next_job(SchedulerInput(next_version="2", paused=True), after(update(JobStatus.DEFERRED)), 1e9) is None


def test_drift_schedules_a_repair() -> None:
    assert next_job(SchedulerInput(drifted=True), JobHistory.empty(), 0.0) == JobKind.REPAIR


@pytest.mark.parametrize(
    "wants", [SchedulerInput(drifted=True, repair_enabled=False), SchedulerInput(drifted=True, paused=True)]
)
def test_drift_schedules_no_repair_when_repair_is_disabled_or_paused(wants: SchedulerInput) -> None:
    assert next_job(wants, JobHistory.empty(), 0.0) is None


def test_failed_repair_is_retried_after_a_delay() -> None:
    memory = after(JobResult(JobKind.REPAIR, JobStatus.FAILED, retryable=True))
    assert next_job(SchedulerInput(drifted=True), memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(SchedulerInput(drifted=True), memory, RETRY_SECONDS[0]) == JobKind.REPAIR


def test_recover_is_scheduled_before_repair() -> None:
    assert next_job(SchedulerInput(credentials_lost=True, drifted=True), JobHistory.empty(), 0.0) == JobKind.RECOVER


def test_deleted_resource_schedules_unbootstrap_before_all_other_jobs() -> None:
    assert (
        next_job(
            SchedulerInput(deleted=True, next_version="2", credentials_lost=True, drifted=True),
            JobHistory.empty(),
            0.0,
        )
        == JobKind.UNBOOTSTRAP
    )


def test_deleted_resource_schedules_no_job_when_unbootstrap_is_disabled() -> None:
    assert (
        next_job(
            SchedulerInput(deleted=True, may_unbootstrap=False, next_version="2", drifted=True),
            JobHistory.empty(),
            0.0,
        )
        is None
    )


def test_interrupted_unbootstrap_is_scheduled_even_when_disabled() -> None:
    assert (
        next_job(SchedulerInput(unbootstrapping=True, may_unbootstrap=False), JobHistory.empty(), 0.0)
        == JobKind.UNBOOTSTRAP
    )


def test_vpn_renewal_is_scheduled_when_paused_but_after_repair() -> None:
    assert next_job(SchedulerInput(vpn_due=True, paused=True), JobHistory.empty(), 0.0) == JobKind.RENEW_VPN
    assert next_job(SchedulerInput(vpn_due=True, drifted=True), JobHistory.empty(), 0.0) == JobKind.REPAIR
    assert (
        next_job(
            SchedulerInput(vpn_due=True), after(JobResult(JobKind.RENEW_VPN, JobStatus.FAILED)), RETRY_SECONDS[0] - 1
        )
        is None
    )
    assert (
        next_job(SchedulerInput(vpn_due=True, deleted=True, may_unbootstrap=False), JobHistory.empty(), 0.0) is None
    )


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
    assert next_job(lost, JobHistory.empty(), 0.0) is not None
    assert 5 <= started <= 20


def test_second_loss_is_recovered_at_once() -> None:
    history, lost = JobHistory.empty(), SchedulerInput(credentials_lost=True)
    history.record(JobResult(JobKind.RECOVER, JobStatus.DONE, "Recovered"), 0.0)
    assert next_job(lost, history, 5.0) is not None
