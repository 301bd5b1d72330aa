"""Atomic writes, file locks and the last lines of a log."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from aks_flex_lab.errors import LabError
from aks_flex_node import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAIL_BYTES = 1 << 16  # the end of a log, long enough for the last lines


def write_atomically(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Writes a temporary file with the final mode, syncs it, and renames it to the target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    atomic_file.write(path, data, mode)


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last non-empty lines of a log; none when the log does not exist."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()][-count:]


def last_line(path: Path) -> str:
    return (last_lines(path, 1) or ["no output"])[0]


@contextlib.contextmanager
def file_lock(path: Path, caller: str, *, wait: bool = False) -> Iterator[None]:
    """Holds an exclusive lock file for the block, then removes it; `caller` names the locked object in the error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            os.close(handle)
            raise LabError(
                "lab-busy", f"Another command is changing {caller} right now.", "Wait until it ends, then retry."
            ) from error
        # The previous holder may have removed the file; a lock on a removed file excludes no other process.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                break
        os.close(handle)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
