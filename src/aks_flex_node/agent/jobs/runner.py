"""Runs jobs as transient systemd units and waits for their results. A job survives a restart of the daemon."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import diagnosis
from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import JOB_EXITED, JOB_KILLED, JOB_UNIT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import COMPLETION_UNIT
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.host.host import Host
    from aks_flex_node.host.records import RecordFile

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
    unit: str = JOB_UNIT
    result_file: RecordFile[JobResult] = job_result.RESULT
    adopted_kind: JobKind = JobKind.ADOPTED  # of a job that was started before this daemon

    def start(self, kind: JobKind, arguments: Sequence[str] = ()) -> bool:
        """Starts a job in a thread; returns False if another job is running."""
        if self.running:
            return False
        self.running = kind
        threading.Thread(target=self._run, args=(kind, tuple(arguments)), name=f"job {kind}", daemon=True).start()
        return True

    def adopt_running(self) -> bool:
        """Waits for a job that was started before this daemon; returns False if none is running."""
        if not self.host.unit(self.unit).running:
            return False
        self.running = self.adopted_kind
        threading.Thread(target=self._wait_for_adopted, name="adopted job", daemon=True).start()
        return True

    def clear(self) -> None:
        """Allows the next job after the result was processed."""
        self.running = None

    def _wait_for_adopted(self) -> None:
        try:
            unit, now, begun = self.host.unit(self.unit), self.now(), time.monotonic()
            since = now - max(0.0, begun - unit.started) if unit.started else now
            while self.host.unit(self.unit).running:
                self.sleep(CHECK_SECONDS)
            result = self.result_file.read(self.host)
            if result and result.at < format_utc(since):
                result = None  # of an earlier job
            outcome = result or self._ended_without_result(self.adopted_kind, since, "")
        except OSError as error:
            outcome = _no_result(self.adopted_kind, str(error), self.unit)
        self.on_result(outcome)

    def _run(self, kind: JobKind, arguments: tuple[str, ...]) -> None:
        """Runs a job and always reports a result, because no other job starts before that."""
        try:
            outcome = self._run_unit(kind, arguments)
        except OSError as error:  # for example out of memory
            outcome = _no_result(kind, str(error), self.unit)
        self.on_result(outcome)

    def _run_unit(self, kind: JobKind, arguments: tuple[str, ...]) -> JobResult:
        before, begun = self.host.read(self.result_file.path), self.now()
        answer = self.host.query(*job_command(self.program, kind, arguments, self.unit), seconds=MAX_JOB_SECONDS)
        outcome = self.result_file.read(self.host) if self.host.read(self.result_file.path) != before else None
        if outcome:
            return outcome
        return self._ended_without_result(kind, begun, answer.err)

    def _ended_without_result(self, kind: JobKind, since: float, output: str) -> JobResult:
        """Returns the result of a job that wrote none: the signal that killed it, or its last line of output."""
        lines = diagnosis.read_journal(self.host, self.host.unit(self.unit), since=since, lines=40)
        if killed := find_signal([*lines, *output.splitlines()], self.unit):
            message = f"The {kind} job was killed by {killed}."
            logs = f"`journalctl -u {self.unit} -n 50`, and `journalctl -k` for lack of memory"
            hint = f"Check {logs}. The daemon retries."
            return JobResult(kind, JobStatus.FAILED, JOB_KILLED, message, hint, retryable=True)
        told = (
            diagnosis.most_relevant_line(lines)
            if lines
            else "\n".join(line for line in output.splitlines() if not NOTICE.match(line))
        )
        return _no_result(kind, told, self.unit)


# Near its end, an unbootstrap has removed the daemon, which would otherwise start a killed job again, and possibly
# the version of the agent that runs it.
RESTARTED = (
    "--property=Restart=on-abnormal",
    "--property=RestartSec=1",
    f"--property=OnFailure={COMPLETION_UNIT.rpartition('/')[2]}",
)


BACKGROUND = ("--property=Nice=10", "--property=IOSchedulingClass=idle")  # of a job that nothing waits for


def job_command(program: str, kind: JobKind, arguments: Sequence[str], unit: str = JOB_UNIT) -> tuple[str, ...]:
    about = f"--description=AKS Flex Node: {kind}"
    return (
        "systemd-run",
        f"--unit={unit}",
        about,
        "--collect",
        "--wait",  # without --quiet, it prints the signal that killed the job
        *(RESTARTED if kind is JobKind.UNBOOTSTRAP else ()),
        *(BACKGROUND if kind is JobKind.STAGE else ()),
        program,
        "job",
        kind.value,
        *arguments,
    )


# Lines of systemd about the job, and of systemd-run; other lines can quote what systemd says of another unit.
KILLED = re.compile(
    r"(?:([\w.-]+\.service): Main process exited, |Main processes terminated with: )"
    r"code=(?:killed|dumped)[,/] ?status=(\w+)(?:/(\w+))?"
)
NOTICE = re.compile(
    r"(?:Running as unit|Finished with result|Main processes terminated with|[A-Z][\w ]+ (?:runtime|consumed|bytes)):"
)


def find_signal(lines: Sequence[str], unit: str = JOB_UNIT) -> str:
    """Returns the signal that killed a unit's process according to systemd; empty if none did."""
    for line in lines:
        found = KILLED.match(line)
        if found and found[1] in {None, unit}:
            return f"signal {found[2]}" + (f" ({found[3]})" if found[3] else "")
    return ""


def _no_result(kind: JobKind, output: str, unit: str) -> JobResult:
    return JobResult(
        kind,
        JobStatus.FAILED,
        JOB_EXITED,
        f"The {kind} job exited without a result: {output.strip() or 'no log output'}",
        f"Check `journalctl -u {unit} -n 50`. The daemon retries.",
        retryable=True,
    )
