"""Asking: the processes and the small files that the other modules get their texts from."""

from __future__ import annotations

import os
import subprocess
import time

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
SECONDS = 60


def ask(*argv: str) -> str | None:
    """What a program says; None when it is not installed or cannot answer on this kernel."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            env=ENVIRONMENT,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read(path: str) -> str:
    """A small file of the kernel; empty when it is not there, or is a setting that can only be written."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - thousands of times
            return file.read()
    except OSError:
        return ""


def settle(seconds: float = SECONDS) -> None:
    """Wait until the machine has finished booting: before that it is not yet what it is."""
    end = time.monotonic() + seconds
    while booting() and time.monotonic() < end:
        time.sleep(0.1)


def booting() -> bool:
    if not os.path.isdir("/run/systemd/system"):  # noqa: PTH112 - no systemd, nothing to wait for
        return False
    try:
        words = ("systemctl", "is-system-running")
        state = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return state.stdout.strip() in {"", "initializing", "starting"}
