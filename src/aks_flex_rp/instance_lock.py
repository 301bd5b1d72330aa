"""Lock file of a state directory: ensures that one service runs from it and tells local commands where it listens.

The kernel releases the lock however the process ends, so whoever gets the lock knows that no service is running.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aks_flex_node.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = "serving.json"
ATTEMPTS = 5


@dataclass(frozen=True)
class RunningInstance:
    url: str
    host: str  # that it listens at
    port: int
    pid: int
    keys: tuple[str, ...] = ()  # ids of the keys that it has loaded: what another sealed it cannot open


class InstanceLock:
    """The right to serve from a state directory."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def publish(self, presence: RunningInstance) -> None:
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(asdict(presence)).encode(), 0)


@contextmanager
def exclusive(state: Path) -> Iterator[InstanceLock]:
    """While this lasts, nobody else serves from here or changes what a service must not be looking at."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(handle):
            found = _read(handle)
            what = f"A service runs from {state}" + (f", at {found.url} (process {found.pid})." if found else ".")
            raise BusyError("service-running", what, "Stop it first, or name another directory with --state.")
        os.ftruncate(handle, 0)
        if os.geteuid() == 0:  # the service may run as whom the directory belongs to, and must be able to lock it
            owner = state.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)
        yield InstanceLock(handle)
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Tried a few times: whoever only looks holds it for a moment, too."""
    for _ in range(ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def find_running(state: Path) -> RunningInstance | None:
    """The service that runs from here; None when none does."""
    try:
        handle = os.open(state / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(handle)
    finally:
        os.close(handle)
    return None


def _read(handle: int) -> RunningInstance | None:
    """None from one that is just beginning."""
    try:
        document = json.loads(os.pread(handle, 65536, 0))
        return RunningInstance(**{**document, "keys": tuple(document["keys"])})
    except (ValueError, TypeError, KeyError):
        return None
