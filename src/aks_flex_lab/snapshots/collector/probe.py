"""Runs programs, reads kernel files, and builds the rows that all sections consist of."""

from __future__ import annotations

import collections
import os
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
TIMEOUT_SECONDS = 60


def run_program(*argv: str) -> str | None:
    """What a program says; None when it is not installed or cannot answer on this kernel."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env=ENVIRONMENT,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_text(path: str) -> str:
    """A small file of the kernel; empty when it is not there, or is a setting that can only be written."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - thousands of times
            return file.read()
    except OSError:
        return ""


def wait_until_booted(seconds: float = TIMEOUT_SECONDS) -> None:
    """Wait until the machine has finished booting: before that it is not yet what it is."""
    end = time.monotonic() + seconds
    while is_booting() and time.monotonic() < end:
        time.sleep(0.1)


def is_booting() -> bool:
    if not os.path.isdir("/run/systemd/system"):  # noqa: PTH112 - no systemd, nothing to wait for
        return False
    try:
        command = ("systemctl", "is-system-running")
        state = subprocess.run(
            command, capture_output=True, text=True, env=ENVIRONMENT, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return state.stdout.strip() in {"", "initializing", "starting"}


Row = dict[str, str]
Rows = dict[str, Row]


def count_rows(names: Iterable[str]) -> Rows:
    """The same thing several times is one row, and one more or less of it is a difference."""
    return {name: {"count": str(count)} for name, count in collections.Counter(names).items()}


def unused_name(name: str, rows: Rows) -> str:
    """A name for one more row. A second mount on the same place, or route to it, is another one."""
    unused, number = name, 1
    while unused in rows:
        number += 1
        unused = f"{name} ({number})"
    return unused
