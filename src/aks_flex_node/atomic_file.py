"""Atomic file writes: a temporary file in the same directory, synced, then renamed over its target.

A reader finds the old content or the new, never a part of it. Shared by the agent, the resource provider and the lab.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def random_sibling(path: Path) -> Path:
    """Returns a hidden path in the same directory that no other writer uses."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}")


def write(path: Path, content: bytes, mode: int, temporary: Path | None = None, *, keep_umask: bool = False) -> None:
    """Replaces a file. The rename itself is on disk only after `sync_directory`."""
    new = temporary or random_sibling(path)
    create(new, content, mode, keep_umask=keep_umask)
    try:
        new.replace(path)
    except BaseException:
        _discard(new)
        raise


def create(path: Path, content: bytes, mode: int, *, keep_umask: bool = False) -> None:
    """Creates and syncs a file that does not exist yet; removes it again when that fails.

    The file has exactly this mode, unless `keep_umask` lets the umask of the process take bits away.
    """
    handle = os.open(path, CREATE_FLAGS, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if not keep_umask:
                os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
    except BaseException:
        _discard(path)  # half a file would only keep a full disk full
        raise


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory survive a power failure."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the error that led here is the one to report
        path.unlink(missing_ok=True)
