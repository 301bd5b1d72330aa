"""Lock file of a state directory: ensures that one service uses it, and tells local commands where it listens.

The kernel releases the lock when the process ends for any reason, so a process that gets the lock knows that no
service is running.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aks_flex_node.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = "serving.json"
ATTEMPTS = 5


@dataclass(frozen=True)
class RunningInstance:
    url: str
    host: str  # listen address
    port: int
    pid: int
    keys: tuple[str, ...] = ()  # IDs of the loaded keys; values encrypted with any other key cannot be decrypted


@dataclass
class InstanceLock:
    """The exclusive right to run a service from a state directory."""

    handle: int

    def publish(self, presence: RunningInstance) -> None:
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, msgspec.json.encode(presence), 0)


@contextmanager
def exclusive(state: Path) -> Iterator[InstanceLock]:
    """Holds the lock of a state directory: no other process can run a service from it or change its files."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(handle):
            found = _read(handle)
            what = f"A service is running from {state}" + (
                f", at {found.url} (process {found.pid})." if found else "."
            )
            raise BusyError("service-running", what, "Stop it first, or use another directory with `--state`.")
        os.ftruncate(handle, 0)
        if os.geteuid() == 0:  # the service may run as the directory's owner and must be able to lock the file
            owner = state.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)
        yield InstanceLock(handle)
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Tries to lock a few times, because `find_running` also takes the lock for a moment."""
    for _ in range(ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def find_running(state: Path) -> RunningInstance | None:
    """Returns the service that runs from this directory, or None."""
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
    """Returns the published instance, or None when the service is still starting."""
    try:
        return msgspec.json.decode(os.pread(handle, 65536, 0), type=RunningInstance)
    except ValueError:
        return None
