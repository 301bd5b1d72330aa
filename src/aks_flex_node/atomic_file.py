"""Atomic file writes: creates a temporary file in the same directory, syncs it, and renames it over the target.

A reader sees either the old or the new content, never a partial file. Shared by the agent, the resource provider and
the lab.
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
    """Replaces a file atomically. The rename is durable only after `sync_directory`."""
    new = temporary or random_sibling(path)
    create(new, content, mode, keep_umask=keep_umask)
    try:
        new.replace(path)
    except BaseException:
        _discard(new)
        raise


def create(path: Path, content: bytes, mode: int, *, keep_umask: bool = False) -> None:
    """Creates and syncs a new file. Removes it again on failure.

    The file has exactly this mode, unless `keep_umask` is set: then the umask of the process applies.
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
        _discard(path)  # A partial file would only use disk space.
        raise


def sync_directory(directory: Path) -> None:
    """Makes creations, renames and removals in a directory survive a power failure."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # The original error is the one to report.
        path.unlink(missing_ok=True)
