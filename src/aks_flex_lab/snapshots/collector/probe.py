"""Runs programs, reads kernel files, and builds the rows that all sections consist of."""

from __future__ import annotations

import collections
import os
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


TIMEOUT_SECONDS = 600  # an emulated machine on a busy host is slow
ENVIRONMENT = {
    "LC_ALL": "C",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_BUS_TIMEOUT": str(TIMEOUT_SECONDS),  # of systemctl; 25 s by default
}


def run_program(*argv: str) -> str | None:
    """Returns the output of a program, or None when it is not installed or not supported by this kernel.

    A program that takes too long fails the snapshot, which would otherwise lack what the machine has.
    """
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
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def read_text(path: str) -> str:
    """Returns the text of a kernel file; empty when it does not exist or is write-only."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - thousands of times
            return file.read()
    except OSError:
        return ""


def wait_until_booted(seconds: float = TIMEOUT_SECONDS) -> None:
    """Waits until the machine has finished booting, because its state changes until then."""
    end = time.monotonic() + seconds
    while is_booting() and time.monotonic() < end:
        time.sleep(0.1)


def is_booting() -> bool:
    if os.path.exists("/run/udev/queue"):  # noqa: PTH110 - udev still loads the modules of devices
        return True
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
    """Returns one row with a count for each name, so that another count is a difference."""
    return {name: {"count": str(count)} for name, count in collections.Counter(names).items()}


def unused_name(name: str, rows: Rows) -> str:
    """Returns a name that no row has, for example for a second mount on the same directory."""
    unused, number = name, 1
    while unused in rows:
        number += 1
        unused = f"{name} ({number})"
    return unused
