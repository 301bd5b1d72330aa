"""The one module of the lab that starts processes.

`run` waits for a command and returns its output; `spawn` starts a process that outlives this program. Such a process
is identified by its process ID *and* its start time, so that a reused ID is never mistaken for it.
"""

from __future__ import annotations

import os
import shlex
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
        """The last line of output, for an error message."""
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
    """Runs a command and waits for it. `env` is added to the environment of this program."""
    command = tuple(str(word) for word in argv)
    added = [f"{name}={value}" for name, value in (env or {}).items()]
    shown = shlex.join(["env", *added, *command] if added else command)
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
            "program-not-found", f"{command[0]} is not installed.", "Run `make setup`, then retry."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(
            "program-timeout",
            f"`{shown}` did not exit within {timeout:.0f} s and was stopped.",
            "Check the load of this machine and retry, or run the command of the message.",
        ) from error
    result = CommandResult(command, done.returncode, done.stdout, done.stderr)
    if check and not result.ok:
        raise LabError(
            "command-failed",
            f"`{shown}` failed: {result.last_line}.",
            "Run this command to see its complete output.",
        )
    return result


def run_logged(*argv: str | Path, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Runs a command with its output in a log file, and returns its exit code."""
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


def run_attached(*argv: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Runs a command on the terminal of this program, and returns its exit code."""
    added = {**os.environ, **env} if env else None
    code = subprocess.run([str(word) for word in argv], env=added, check=False).returncode
    return code if code >= 0 else 128 - code


def parent_death_wrapper() -> list[str]:
    """Returns the command prefix that stops the command when this program is killed."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def exec_program(*argv: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Replaces this process with a program. `env` is added to the environment of this program."""
    command = [str(word) for word in argv]
    os.execvpe(command[0], command, {**os.environ, **(env or {})})  # noqa: S606


@dataclass(frozen=True)
class ProcessHandle:
    """A process, possibly started by an earlier run of this program."""

    pid: int
    started: int  # in clock ticks since boot, from /proc

    @classmethod
    def of(cls, pid: int) -> ProcessHandle:
        return cls(pid, start_ticks(pid) or 0)

    @property
    def alive(self) -> bool:
        return self.started != 0 and start_ticks(self.pid) == self.started

    def kill(self, sig: signal.Signals = signal.SIGTERM) -> None:
        if self.alive:
            try:
                os.kill(self.pid, sig)
            except ProcessLookupError:
                return

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the process; returns whether it exited within the time."""
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
    """Starts a program in a new session, with its output in a log, and does not wait for it.

    It gets a minimal environment, without the proxy settings and secrets of the caller.
    """
    out = log.open("ab") if isinstance(log, Path) else log
    with out:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**{key: os.environ[key] for key in INHERITED_ENVIRONMENT if key in os.environ}, **(env or {})},
            cwd="/",  # The process blocks no unmount, and Python finds no module there.
            start_new_session=True,
        )
    child.returncode = 0  # This program exits earlier and does not wait for it.
    return ProcessHandle.of(child.pid)


def reap(pid: int) -> None:
    """Reaps a child of this program, so that it does not remain as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks, or None for a zombie or a process that does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def resident_bytes(pids: Sequence[int]) -> int:
    """Returns the total resident memory of these processes."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE")
