"""The one module of the lab that starts processes.

`run` waits for a command and returns what it said; `spawn` starts something that outlives this program. A process
that the lab left running is known by its id *and* its start time, so that a reused id is never taken for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from aks_flex_lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INHERITED_ENVIRONMENT = ("PATH", "HOME", "LANG", "TZ")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CommandResult:
    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        """The last line the command said, for an error message."""
        lines = [line for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


def run(
    *argv: str | Path,
    check: bool = True,
    input: str | None = None,  # noqa: A002 - the name subprocess gave it
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = 120,
) -> CommandResult:
    """Run a command to its end. `env` is added to this program's own environment."""
    command = tuple(str(word) for word in argv)
    try:
        done = subprocess.run(
            command,
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(
            "program-not-found", f"{command[0]} is not installed.", "Run `make setup`, then try again."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(
            "program-timeout",
            f"`{' '.join(command)}` did not end within {timeout:.0f} s and was stopped.",
            "Is the machine very busy? Try again, or run that command yourself.",
        ) from error
    result = CommandResult(command, done.returncode, done.stdout, done.stderr)
    if check and not result.ok:
        raise LabError(
            "command-failed",
            f"`{' '.join(command)}` failed: {result.last_line}.",
            "Run that command yourself to see all it says.",
        )
    return result


def run_logged(*argv: str | Path, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Run a long command with its output in a log file, and return its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            check=False,
        ).returncode


def run_attached(*argv: str | Path) -> int:
    """Run a command on this program's own terminal and return its exit code."""
    code = subprocess.run([str(word) for word in argv], check=False).returncode
    return code if code >= 0 else 128 - code


def parent_death_wrapper() -> list[str]:
    """The words before a command that end it when this program is killed, so that it does not go on alone."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def exec_program(*argv: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Become another program. `env` is added to this program's own environment."""
    command = [str(word) for word in argv]
    os.execvpe(command[0], command, {**os.environ, **(env or {})})  # noqa: S606


@dataclass(frozen=True)
class ProcessHandle:
    """A process that may have been started by an earlier run of this program."""

    pid: int
    started: int  # in clock ticks since boot, as the kernel tells it

    @classmethod
    def of(cls, pid: int) -> ProcessHandle:
        return cls(pid, start_ticks(pid) or 0)

    @property
    def alive(self) -> bool:
        return self.started != 0 and start_ticks(self.pid) == self.started

    @property
    def since(self) -> float:
        """When it started, as unix time."""
        with Path("/proc/uptime").open() as uptime:
            boot = time.time() - float(uptime.read().split()[0])
        return boot + self.started / CLOCK_TICKS

    def kill(self, sig: signal.Signals = signal.SIGTERM) -> None:
        if self.alive:
            try:
                os.kill(self.pid, sig)
            except ProcessLookupError:
                return

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        end = time.monotonic() + seconds
        while self.alive:
            reap(self.pid)
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def stop(self, seconds: float = 5) -> None:
        self.kill(signal.SIGTERM)
        if not self.wait(seconds):
            self.kill(signal.SIGKILL)
            self.wait(5)


def spawn(
    argv: Sequence[str | Path],
    *,
    log: Path | IO[bytes],
    env: Mapping[str, str] | None = None,
) -> ProcessHandle:
    """Start a program in a session of its own, its output in a log, and leave it running.

    Of our environment it gets the least: neither a proxy nor a secret of the caller's is its business.
    """
    out = log.open("ab") if isinstance(log, Path) else log
    with out:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**{key: os.environ[key] for key in INHERITED_ENVIRONMENT if key in os.environ}, **(env or {})},
            cwd="/",  # nobody's directory is kept busy, and Python finds no module there
            start_new_session=True,
        )
    child.returncode = 0  # it is not ours to wait for: this program ends before it does
    return ProcessHandle.of(child.pid)


def reap(pid: int) -> None:
    """Take the exit code of a child of this very program, so that it does not linger as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def start_ticks(pid: int) -> int | None:
    """When a process started; None when there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def resident_bytes(pids: Sequence[int]) -> int:
    """The memory that is in use by these processes together."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE")
