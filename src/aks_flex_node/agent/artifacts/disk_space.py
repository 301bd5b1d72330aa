"""Checks for free disk space, explains a full disk, and creates and removes directory trees without crossing
mounts.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_node.errors import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def explain_disk_full(path: Path, needed: int) -> Iterator[None]:
    """Converts a disk-full OSError into a DiskFullError that names the path and the space needed."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full_error(path, needed) from error
        raise


def require_space(path: Path, needed: int) -> None:
    """Raises DiskFullError if the disk does not have the needed space, before anything is written."""
    status = os.statvfs(path.parent)
    if status.f_bavail * status.f_frsize < needed:
        raise disk_full_error(path, needed)


def disk_full_error(path: Path, needed: int) -> DiskFullError:
    return DiskFullError(
        "disk-full",
        f"Not enough disk space for {path}: {format_megabytes(needed)} more are needed.",
        f"Check `df -h {path.parent}`. Run `aks-flex-node artifacts clean` to remove downloads that are no longer "
        "used.",
    )


def format_megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"


def make_directory(path: Path) -> None:
    """Creates a directory and its parents with mode 0755, regardless of the umask."""
    missing = [path, *path.parents]
    for folder in reversed([each for each in missing if not each.exists()]):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def remove_tree(path: Path) -> None:
    """Removes a directory tree. Does not cross mounts or follow symbolic links."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    remove_contents(path, path.lstat().st_dev)
    path.rmdir()


def remove_contents(folder: Path, device: int) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)  # noqa: PTH108 - an entry's own path
            elif entry.stat(follow_symlinks=False).st_dev == device:
                remove_contents(folder / entry.name, device)
                os.rmdir(entry.path)  # noqa: PTH106 - an entry's own path
            else:
                raise OSError(errno.EBUSY, "a file system is mounted there", entry.path)
