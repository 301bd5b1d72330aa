"""Runs jobs as transient systemd units and waits for their results. A job survives a restart of the daemon."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import diagnosis
from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import JOB_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.host.host import Host

JOB_UNIT = "aks-flex-node-job.service"
MAX_JOB_SECONDS = 4 * 24 * 3600.0  # a drain may take a day; all steps of a job have their own limits
CHECK_SECONDS = 1.0


@dataclass
class JobRunner:
    host: Host
    program: str
    on_result: Callable[[JobResult], None]  # called in another thread
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    running: JobKind | None = None  # None only after the result was processed

    def start(self, kind: JobKind, arguments: Sequence[str] = ()) -> bool:
        """Starts a job in a thread; returns False if another job is running."""
        if self.running:
            return False
        self.running = kind
        threading.Thread(target=self._run, args=(kind, tuple(arguments)), name=f"job {kind}", daemon=True).start()
        return True

    def adopt_running(self) -> bool:
        """Waits for a job that was started before this daemon; returns False if none is running."""
        if not self.host.unit(JOB_UNIT).running:
            return False
        self.running = JobKind.ADOPTED
        threading.Thread(target=self._wait_for_adopted, name="adopted job", daemon=True).start()
        return True

    def clear(self) -> None:
        """Allows the next job after the result was processed."""
        self.running = None

    def _wait_for_adopted(self) -> None:
        try:
            while self.host.unit(JOB_UNIT).running:
                self.sleep(CHECK_SECONDS)
            result = job_result.read_result(self.host, JOB_RESULT)
        except OSError as error:
            result = _no_result(JobKind.ADOPTED, str(error))
        self.on_result(result or _no_result(JobKind.ADOPTED))

    def _run(self, kind: JobKind, arguments: tuple[str, ...]) -> None:
        """Runs a job and always reports a result, because no other job starts before that."""
        try:
            outcome = self._run_unit(kind, arguments)
        except OSError as error:  # for example out of memory
            outcome = _no_result(kind, str(error))
        self.on_result(outcome)

    def _run_unit(self, kind: JobKind, arguments: tuple[str, ...]) -> JobResult:
        before, begun = self.host.read(JOB_RESULT), self.now()
        answer = self.host.query(*job_command(self.program, kind, arguments), seconds=MAX_JOB_SECONDS)
        outcome = job_result.read_result(self.host, JOB_RESULT) if self.host.read(JOB_RESULT) != before else None
        if outcome:
            return outcome
        lines = diagnosis.read_journal(self.host, self.host.unit(JOB_UNIT), since=begun, lines=40)
        return _no_result(kind, diagnosis.most_relevant_line(lines) if lines else answer.err)


# Near its end, an unbootstrap has removed the daemon, which would otherwise start a killed job again.
RESTARTED = ("--property=Restart=on-abnormal", "--property=RestartSec=1")


def job_command(program: str, kind: JobKind, arguments: Sequence[str]) -> tuple[str, ...]:
    about = f"--description=AKS Flex Node: {kind}"
    return (
        "systemd-run",
        f"--unit={JOB_UNIT}",
        about,
        "--collect",
        "--wait",
        "--quiet",
        *(RESTARTED if kind is JobKind.UNBOOTSTRAP else ()),
        program,
        "job",
        kind.value,
        *arguments,
    )


def _no_result(kind: JobKind, output: str = "") -> JobResult:
    return JobResult(
        kind,
        JobStatus.FAILED,
        "JobExited",
        f"The {kind} job exited without a result: {output.strip() or 'no log output'}",
        f"Check `journalctl -u {JOB_UNIT} -n 50`. The daemon retries.",
        retryable=True,
    )
