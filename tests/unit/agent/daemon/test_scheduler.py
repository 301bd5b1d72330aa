"""What is done next, and what is not done again."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.daemon import scheduler
from aks_flex_node.agent.daemon.scheduler import REFUSED_RETRY_SECONDS, RETRY_SECONDS, JobHistory
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import JOBS, SchedulerInput, find_job


def next_job(wants: SchedulerInput, history: JobHistory, now: float) -> JobKind | None:
    job = scheduler.next_job(wants, history, now)
    return job.kind if job else None


def test_every_kind_of_job_is_registered_once_and_found_by_its_word() -> None:
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


def test_nothing_is_done_when_all_is_well() -> None:
    assert next_job(SchedulerInput(), JobHistory.empty(), 0.0) is None


def test_what_is_being_taken_apart_is_not_repaired_while_its_leave_is_put_off() -> None:
    wants = SchedulerInput(unbootstrapping=True, next_version="2", credentials_lost=True, drifted=True)
    memory = after(JobResult(JobKind.UNBOOTSTRAP, JobStatus.FAILED, retryable=True))
    assert next_job(wants, memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(wants, memory, RETRY_SECONDS[0]) == JobKind.UNBOOTSTRAP


def test_a_new_configuration_is_taken() -> None:
    assert next_job(SchedulerInput(next_version="2"), JobHistory.empty(), 0.0) == JobKind.UPDATE


def test_an_update_that_was_stopped_half_way_goes_on_whatever_is_known_of_it() -> None:
    assert next_job(SchedulerInput(unfinished=True), after(update(JobStatus.ROLLED_BACK)), 1e9) == JobKind.UPDATE


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED])
def test_a_version_that_did_not_work_is_not_tried_again(result: JobStatus) -> None:
    assert next_job(SchedulerInput(next_version="2"), after(update(result)), 1e9) is None


@pytest.mark.parametrize("result", [JobStatus.ROLLED_BACK, JobStatus.FAILED, JobStatus.REFUSED, JobStatus.DEFERRED])
def test_the_next_version_is(result: JobStatus) -> None:
    memory = after(update(result))
    memory.forget(JobKind.UPDATE)
    assert next_job(SchedulerInput(next_version="3", window_open=False), memory, 0.0) == JobKind.UPDATE


def test_what_may_work_later_is_tried_later() -> None:
    memory = after(update(JobStatus.FAILED, retryable=True))
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[0]) == JobKind.UPDATE


def test_and_less_and_less_often() -> None:
    memory = after(*[update(JobStatus.FAILED, retryable=True)] * 9)
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[-1] - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, RETRY_SECONDS[-1]) == JobKind.UPDATE


def test_a_skew_that_the_cluster_may_mend_is_looked_at_every_hour() -> None:
    memory = after(update(JobStatus.REFUSED, retryable=True))
    assert next_job(SchedulerInput(next_version="2"), memory, REFUSED_RETRY_SECONDS - 1) is None
    assert next_job(SchedulerInput(next_version="2"), memory, REFUSED_RETRY_SECONDS) == JobKind.UPDATE


def test_what_waits_for_a_window_goes_on_when_it_opens() -> None:
    memory = after(update(JobStatus.DEFERRED))
    assert next_job(SchedulerInput(next_version="2", window_open=False), memory, 1e9) is None
    assert next_job(SchedulerInput(next_version="2"), memory, 1e9) == JobKind.UPDATE


def test_what_is_paused_waits() -> None:
    assert next_job(SchedulerInput(next_version="2", paused=True), after(update(JobStatus.DEFERRED)), 1e9) is None


def test_drift_is_repaired() -> None:
    assert next_job(SchedulerInput(drifted=True), JobHistory.empty(), 0.0) == JobKind.REPAIR


@pytest.mark.parametrize(
    "wants", [SchedulerInput(drifted=True, repair_enabled=False), SchedulerInput(drifted=True, paused=True)]
)
def test_unless_it_is_only_to_be_reported(wants: SchedulerInput) -> None:
    assert next_job(wants, JobHistory.empty(), 0.0) is None


def test_a_repair_that_failed_is_not_repeated_at_once() -> None:
    memory = after(JobResult(JobKind.REPAIR, JobStatus.FAILED, retryable=True))
    assert next_job(SchedulerInput(drifted=True), memory, RETRY_SECONDS[0] - 1) is None
    assert next_job(SchedulerInput(drifted=True), memory, RETRY_SECONDS[0]) == JobKind.REPAIR


def test_a_node_that_has_lost_its_way_back_is_recovered_before_anything_is_repaired() -> None:
    assert next_job(SchedulerInput(credentials_lost=True, drifted=True), JobHistory.empty(), 0.0) == JobKind.RECOVER


def test_a_deleted_resource_ends_everything_else() -> None:
    assert (
        next_job(
            SchedulerInput(deleted=True, next_version="2", credentials_lost=True, drifted=True),
            JobHistory.empty(),
            0.0,
        )
        == JobKind.UNBOOTSTRAP
    )


def test_unless_somebody_holds_it_off() -> None:
    assert (
        next_job(
            SchedulerInput(deleted=True, may_unbootstrap=False, next_version="2", drifted=True),
            JobHistory.empty(),
            0.0,
        )
        is None
    )


def test_a_leave_that_was_stopped_half_way_goes_on_without_asking_anybody() -> None:
    assert (
        next_job(SchedulerInput(unbootstrapping=True, may_unbootstrap=False), JobHistory.empty(), 0.0)
        == JobKind.UNBOOTSTRAP
    )


def test_a_tunnel_whose_certificate_ends_is_renewed_also_while_paused_but_not_before_a_repair() -> None:
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
