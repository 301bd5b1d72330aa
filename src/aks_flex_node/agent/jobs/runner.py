"""Starts jobs as transient systemd units and waits for their results; a job outlives a restart of the daemon."""

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
MAX_JOB_SECONDS = 4 * 24 * 3600.0  # a drain may take a day, and everything in a work has a bound of its own
CHECK_SECONDS = 1.0


@dataclass
class JobRunner:
    host: Host
    program: str
    on_result: Callable[[JobResult], None]  # called in another thread
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    running: JobKind | None = None  # what is under way; None only when its outcome was heard

    def start(self, kind: JobKind, arguments: Sequence[str] = ()) -> bool:
        """Begin one, unless another is under way."""
        if self.running:
            return False
        self.running = kind
        threading.Thread(target=self._run, args=(kind, tuple(arguments)), name=f"work {kind}", daemon=True).start()
        return True

    def adopt_running(self) -> bool:
        """A work that an earlier life of this process began goes on; wait for it as if it were ours."""
        if not self.host.unit(JOB_UNIT).running:
            return False
        self.running = JobKind.ADOPTED
        threading.Thread(target=self._wait_for_adopted, name="earlier work", daemon=True).start()
        return True

    def clear(self) -> None:
        """Its outcome was heard: from now on there may be another."""
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
        """Whatever happens, there is an outcome: nothing else is begun before."""
        try:
            outcome = self._run_unit(kind, arguments)
        except OSError as error:  # there may be no memory left for another process
            outcome = _no_result(kind, str(error))
        self.on_result(outcome)

    def _run_unit(self, kind: JobKind, arguments: tuple[str, ...]) -> JobResult:
        before, begun = self.host.read(JOB_RESULT), self.now()
        answer = self.host.query(*job_command(self.program, kind, arguments), seconds=MAX_JOB_SECONDS)
        outcome = job_result.read_result(self.host, JOB_RESULT) if self.host.read(JOB_RESULT) != before else None
        if outcome:
            return outcome
        lines = diagnosis.read_journal(self.host, self.host.unit(JOB_UNIT), since=begun, lines=40)
        return _no_result(kind, diagnosis.most_telling_line(lines) if lines else answer.err)


def job_command(program: str, kind: JobKind, arguments: Sequence[str]) -> tuple[str, ...]:
    about = f"--description=AKS Flex Node: {kind}"
    return (
        "systemd-run",
        f"--unit={JOB_UNIT}",
        about,
        "--collect",
        "--wait",
        "--quiet",
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
        f"The {kind} ended without a word: {output.strip() or 'it said nothing'}",
        f"Look at `journalctl -u {JOB_UNIT} -n 50`. It is tried again.",
        retryable=True,
    )
