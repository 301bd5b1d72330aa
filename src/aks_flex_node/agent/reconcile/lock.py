"""The lock that prevents two processes from changing the machine at the same time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.errors import BusyError, MachineError
from aks_flex_node.host.actions import aside_path

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_FILE = "/run/aks-flex-node.lock"
MAX_CONTENT = 128  # process ID and fingerprint
ATTEMPTS, ATTEMPT_SECONDS = 5, 0.01


@contextlib.contextmanager
def exclusive(path: str = LOCK_FILE) -> Iterator[None]:
    """Acquires the lock; the kernel releases it when the process ends. Raises BusyError if it is held."""
    while True:
        handle = _open(path)
        try:
            _acquire(handle)
        except BlockingIOError as error:
            content = os.pread(handle, MAX_CONTENT, 0)
            os.close(handle)
            raise _held_error(*_parse(content)) from error
        # The previous holder may have removed the file; a lock on a removed file is not effective.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == Path(path).stat().st_ino:
                break
        os.close(handle)
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        Path(path).unlink(missing_ok=True)
        os.close(handle)


def record_waiting(fingerprint: str, path: str = LOCK_FILE) -> None:
    """Records that the holder of the lock, which is this process, waits for the approval of a key; an empty
    fingerprint ends that.
    """
    with contextlib.suppress(OSError):  # the record is only for messages
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n{fingerprint}".strip().encode(), 0)
        finally:
            os.close(handle)


def read_waiting(path: str = LOCK_FILE) -> tuple[str, str] | None:
    """Returns the process that waits for an approval, and the fingerprint of its key, or None if none waits."""
    try:
        holder, fingerprint = _parse(Path(path).read_bytes()[:MAX_CONTENT])
    except OSError:
        return None
    return (holder, fingerprint) if fingerprint and is_held(path) else None


def _parse(content: bytes) -> tuple[str, str]:
    """Returns the process ID of the holder, and the fingerprint of the key whose approval it waits for."""
    holder, _, fingerprint = content.decode(errors="replace").strip().partition("\n")
    return holder or "unknown", fingerprint


def _held_error(holder: str, fingerprint: str) -> BusyError:
    if fingerprint:
        return BusyError(
            "agent-locked",
            f"Another aks-flex-node process (PID {holder}) waits for the approval of this machine, whose key has the "
            f"fingerprint {fingerprint}.",
            "Approve the machine with `aks-flex-rp pool enrolment approve --pool POOL --id ENROLMENT --fingerprint "
            f"{fingerprint}`, or stop the other process with `kill {holder}`.",
            retryable=True,
        )
    return BusyError(
        "agent-locked",
        f"Another aks-flex-node process (PID {holder}) is changing this machine.",
        "Wait until it ends, then run the same command again.",
        retryable=True,
    )


def _open(path: str) -> int:
    """Opens the file of the lock. Removes a link or an empty directory in its place, and sets a full one aside; never
    a file, which another process may have locked.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        problem = error
    place = Path(path)
    try:
        if place.is_symlink():
            place.unlink()
        elif place.is_dir():
            try:
                place.rmdir()
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                aside = Path(aside_path(str(place)))
                aside.mkdir(0o700, exist_ok=True)
                # Fails for a file that another process created meanwhile: the target is a directory.
                place.rename(aside)
        else:
            raise problem
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise MachineError(
            "file-access-failed",
            f"Could not open the lock {path}: {error.strerror or error}.",
            f"Check `ls -ld {path}`. Remove it if it is not a file, then run the same command again.",
        ) from error


def _acquire(handle: int) -> None:
    """Retries shortly, because `is_held` holds the lock for an instant."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(ATTEMPT_SECONDS)
    return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: str = LOCK_FILE) -> bool:
    """Returns whether a process holds the lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
