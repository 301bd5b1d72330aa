"""Starts tasks in the program `crashing_provider`, and compares how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.service.rp.rollouts.crashing_provider import Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

ROOT = Path(__file__).parents[4]
RETURN_SECONDS = 300.0  # of the clock, until the provider runs again
numbers = count(1)


class Check(Protocol):
    def __call__(self, found: dict[str, Any], *, is_bad: bool) -> None: ...


def result(found: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on an interruption. Nodes of one wave are given the revision in any order."""
    return {key: value for key, value in found.items() if key != "writes"} | {"given": sorted(found["given"])}


def sweep_kills(
    runs: CrashRuns, check: Check, *, is_bad: bool, first: int = 1, every: int = 1, after: bool = False
) -> None:
    """Kills the provider at writes, in a new pool each: as many as a whole run has."""
    check(whole := runs.run(runs.task(is_bad=is_bad)), is_bad=is_bad)
    for number in range(first, whole["writes"] + 1, every):
        found = runs.after_kill(runs.task(is_bad=is_bad, kill_at=number, after=after))
        assert result(found) == result(whole), f"killed at write {number}"


def sweep_restarts(
    runs: CrashRuns, check: Check, restart: Callable[[], None], *, is_bad: bool, first: int = 1, every: int = 1
) -> None:
    """Restarts the database before writes, in a new pool each."""
    check(whole := runs.run(runs.task(is_bad=is_bad)), is_bad=is_bad)
    for number in range(first, whole["writes"] + 1, every):
        found = runs.run(runs.task(is_bad=is_bad, restart_at=number), restart)
        assert result(found) == result(whole), f"restarted before write {number}"


class CrashRuns:
    def __init__(self, room: Path, database: str | None) -> None:
        self._words = (str(room), database)
        self._now = time.time()

    def __enter__(self) -> CrashRuns:
        self._program = subprocess.Popen(
            (sys.executable, "-m", "tests.service.rp.rollouts.crashing_provider"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.close()
        self._program.wait(60)
        self._program.stdout.close()

    def run(self, task: Task, restart: Callable[[], None] = lambda: None) -> dict[str, Any]:
        self._send(json.dumps(asdict(task)))
        found = self._answer()
        if "restart" in found:
            restart()
            self._send("done")
            found = self._answer()
        assert "error" not in found, found
        return found

    def task(self, **words: Any) -> Task:
        self._now += 1000.0  # the lease of the process before has ended
        return Task(*self._words, pool=f"c{next(numbers)}", start=self._now, **words)

    def after_kill(self, task: Task) -> dict[str, Any]:
        """Runs a task that is killed, and then another process that completes it."""
        assert self.run(task) == {"killed": signal.SIGKILL}
        return self.run(Task(*self._words, task.pool, task.start + RETURN_SECONDS, is_bad=task.is_bad))

    @property
    def is_sqlite(self) -> bool:
        return self._words[1] is None

    def _send(self, line: str) -> None:
        assert self._program.stdin
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._program.stdout
        line = self._program.stdout.readline()
        assert line, "the program ended"
        found: dict[str, Any] = json.loads(line)
        return found
