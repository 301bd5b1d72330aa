"""Runs the lab from a test, by its command or from Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import CommandResult, run
from aks_flex_lab.progress import ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

LAB = os.environ.get("AKS_FLEX_TEST_LAB", "test")  # shared by all tests
COMMAND = Path(sys.executable).parent / "aks-flex-lab"


class Lines(ProgressReporter):
    """Prints progress as plain lines; pytest shows them when a test fails."""

    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:
        print(what, doing())
        return nullcontext()

    def finished(self, what: str, how: str, seconds: float) -> None:
        print(what, how, seconds)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        print(text)
        yield

    def message(self, text: str) -> None:
        print(text)


def command(name: str, *words: str, check: bool = True, env: dict[str, str] | None = None) -> CommandResult:
    """Runs `aks-flex-lab`."""
    return run(COMMAND, "--lab", name, *words, check=check, env=env, timeout=300)


def kill_while_coming_up(name: str, seconds: float) -> None:
    """Starts `up` and kills it after this many seconds."""
    process = subprocess.Popen([COMMAND, "--lab", name, "up"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    process.wait()
