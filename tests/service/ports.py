"""Finds free ports, and waits until a server responds."""

from __future__ import annotations

import random
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.processes import ProcessHandle

GIVEN_TO_NOBODY = range(15_000, 32_000)  # below Linux's range of ephemeral ports


def wait_until(holds: Callable[[], bool], process: ProcessHandle, log: Path) -> None:
    """Waits until a server responds; fails with its log."""
    end = time.monotonic() + 120
    while not holds():
        assert process.alive, f"it ended: {log.read_text()}"
        assert time.monotonic() < end, f"it did not start in time: {log.read_text()}"
        time.sleep(0.02)


def free_port() -> int:
    """Returns a port outside the ephemeral range, so that no other process gets it before its use."""
    for port in random.sample(GIVEN_TO_NOBODY, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are taken")


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
