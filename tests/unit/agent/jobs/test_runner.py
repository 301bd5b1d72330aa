"""Tests of the job runner: one job at a time, and a result for each."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.job_records.job_result import JOB_UNIT, RESULT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.runner import JobRunner, find_signal, job_command
from aks_flex_node.host.actions import StartUnit, StopUnit
from aks_flex_node.host.host import CommandResult
from tests.unit.agent.daemon.fakes import FakeHost

if TYPE_CHECKING:
    from aks_flex_node.host.host import UnitState

PROGRAM = "/usr/bin/aks-flex-node"


def works_on(host: FakeHost) -> tuple[JobRunner, queue.Queue[JobResult]]:
    heard: queue.Queue[JobResult] = queue.Queue()
    return JobRunner(host, PROGRAM, heard.put, sleep=lambda _: None, now=lambda: 1.7e9), heard


def updated_on(host: FakeHost) -> JobResult:
    """Runs an update; returns its result."""
    works, heard = works_on(host)
    assert works.start(JobKind.UPDATE)
    return heard.get(timeout=10)


def test_job_runs_in_a_transient_unit() -> None:
    words = job_command(PROGRAM, JobKind.REPAIR, ("--ignore=/etc/a",))
    assert words[0] == "systemd-run"
    assert {f"--unit={JOB_UNIT}", "--collect", "--wait"} <= set(words)
    assert words[-4:] == (PROGRAM, "job", "repair", "--ignore=/etc/a")


def test_killed_unbootstrap_is_started_again_by_systemd() -> None:
    assert "--property=Restart=on-abnormal" in job_command(PROGRAM, JobKind.UNBOOTSTRAP, ())
    assert "--property=OnFailure=aks-flex-node-unbootstrap.service" in job_command(PROGRAM, JobKind.UNBOOTSTRAP, ())
    assert "--property=Restart=on-abnormal" not in job_command(PROGRAM, JobKind.UPDATE, ())


def test_second_job_is_refused_until_the_first_result_is_cleared() -> None:
    works, heard = works_on(FakeHost())
    assert works.start(JobKind.UPDATE)
    assert not works.start(JobKind.REPAIR)
    heard.get(timeout=10)
    assert not works.start(JobKind.REPAIR)
    works.clear()
    assert works.start(JobKind.REPAIR)
    heard.get(timeout=10)


def test_old_job_result_is_not_taken_for_a_new_one() -> None:
    host = FakeHost()
    RESULT.write(host, JobResult(JobKind.UPDATE, JobStatus.DONE, version="1"))
    host.outcomes = [None]
    outcome = updated_on(host)
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, "JobExited", True)


class FailingSystemdHost(FakeHost):
    """A machine where systemd starts nothing, and whose journal contains messages of an earlier job."""

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:  # noqa: ARG002
        if argv[0] == "journalctl":
            since = [word for word in argv if word.startswith("--since=@")]
            return CommandResult(0, "" if since else "E0101 words of last week\n")
        return CommandResult(1, err="Failed to start transient service unit: Unit was already loaded.\n")


def test_job_failure_contains_the_systemd_error() -> None:
    message = updated_on(FailingSystemdHost()).message
    assert "already loaded" in message
    assert "last week" not in message


class OutOfMemoryHost(FakeHost):
    """A machine without memory for another process."""

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:  # noqa: ARG002
        raise OSError(12, "Cannot allocate memory")


def test_out_of_memory_gives_a_retryable_failed_result() -> None:
    outcome = updated_on(OutOfMemoryHost())
    assert (outcome.result, outcome.retryable) == (JobStatus.FAILED, True)
    assert "Cannot allocate memory" in outcome.message


class EndingJobHost(FakeHost):
    """A machine on which an earlier job ends at the third check."""

    looks = 0

    def unit(self, name: str) -> UnitState:
        self.looks += 1
        if self.looks == 4:
            RESULT.write(self, JobResult(JobKind.UPDATE, JobStatus.DONE, version="2"))
            self.apply(StopUnit(name))
        return super().unit(name)


def test_running_job_of_an_earlier_daemon_is_adopted() -> None:
    host = EndingJobHost()
    host.apply(StartUnit(JOB_UNIT))
    host.looks = 0
    works, heard = works_on(host)
    assert works.adopt_running()
    assert works.running == JobKind.ADOPTED
    assert (heard.get(timeout=10).version, host.works) == ("2", [])


@pytest.mark.parametrize(
    ("output", "signal"),
    [
        ("Main processes terminated with: code=killed, status=9/KILL\n", "signal 9 (KILL)"),
        ("Main processes terminated with: code=killed/status=KILL\n", "signal KILL"),
        ("Main processes terminated with: code=dumped, status=11/SEGV\n", "signal 11 (SEGV)"),
    ],
)
def test_killed_job_names_its_signal_and_is_retried(output: str, signal: str) -> None:
    host = FakeHost()
    host.query = lambda *argv, seconds=10.0: CommandResult(  # type: ignore[method-assign]  # noqa: ARG005
        255, "the last progress\n" if argv[0] == "journalctl" else "", f"Running as unit: x\n{output}"
    )
    outcome = updated_on(host)
    assert (outcome.reason, outcome.retryable) == ("JobKilled", True)
    assert outcome.message == f"The update job was killed by {signal}."


def test_notices_of_systemd_run_are_no_cause_of_a_failure() -> None:
    host = FakeHost()
    said = "Running as unit: x\nFailed to do it.\nFinished with result: exit-code\nCPU time consumed: 3ms\n"
    host.query = lambda *argv, seconds=10.0: CommandResult(1, "", said)  # type: ignore[method-assign]  # noqa: ARG005
    assert updated_on(host).message == "The update job exited without a result: Failed to do it."


def test_result_of_an_earlier_job_is_not_taken_for_that_of_an_adopted_one() -> None:
    host = EndingJobHost()
    host.apply(StartUnit(JOB_UNIT))
    host.looks = 4  # ends without a result
    RESULT.write(host, JobResult(JobKind.UPDATE, JobStatus.DONE, version="1", at="2001-01-01T00:00:00Z"))
    works, heard = works_on(host)
    assert works.adopt_running()
    host.apply(StopUnit(JOB_UNIT))
    assert heard.get(timeout=10).reason == "JobExited"


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        (f"{JOB_UNIT}: Main process exited, code=killed, status=9/KILL", "signal 9 (KILL)"),
        ("kubelet.service: Main process exited, code=killed, status=9/KILL", ""),
        (f"failed: {JOB_UNIT}: Main process exited, code=killed, status=9/KILL", ""),
    ],
)
def test_only_systemd_tells_the_signal_of_the_job(line: str, signal: str) -> None:
    assert find_signal([line]) == signal
