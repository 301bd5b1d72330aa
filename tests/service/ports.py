"""Free ports, and waiting until a server answers at one."""

from __future__ import annotations

import random
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.processes import ProcessHandle

GIVEN_TO_NOBODY = range(15_000, 32_000)  # below the range that Linux gives to whoever connects somewhere


def wait_until(holds: Callable[[], bool], process: ProcessHandle, log: Path) -> None:
    """Until a server answers; what it said, when it does not."""
    end = time.monotonic() + 30
    while not holds():
        assert process.alive, f"it ended: {log.read_text()}"
        assert time.monotonic() < end, f"it did not start in time: {log.read_text()}"
        time.sleep(0.02)


def free_port() -> int:
    """One that the system gives to nobody who asks for any: before it is used, somebody else could get it."""
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
