"""Lists the mounts below a directory, and removes directories without crossing a mount point."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aks_flex_lab.errors import LabError
from aks_flex_lab.processes import run
from aks_flex_node.host import mounts as host_mounts


def mounts_below(directory: Path) -> list[str]:
    """Returns the mount points at and below a directory, the innermost first."""
    return host_mounts.mounts_below(host_mounts.current_mounts(), str(directory))


def unmount_below(directory: Path) -> None:
    for point in mounts_below(directory):
        run("umount", "--", point)


def remove_tree(directory: Path) -> None:
    """Removes a directory with its contents. Raises an error if a file system is mounted in it."""
    if not directory.exists():
        return
    if inside := mounts_below(directory):
        raise LabError(
            "mount-conflict",
            f"{directory} was not removed, because {inside[0]} is mounted in it.",
            f"Run `umount {inside[0]}`, then retry.",
        )
    _remove(directory, directory.lstat().st_dev)


def _remove(path: Path, device: int) -> None:
    facts = path.lstat()
    if facts.st_dev != device:
        raise LabError(
            "mount-conflict",
            f"{path} was not removed, because it is on another file system.",
            f"Run `umount {path}`, then retry.",
        )
    if stat.S_ISDIR(facts.st_mode):
        with os.scandir(path) as entries:
            children = [Path(entry.path) for entry in entries]
        for child in children:
            _remove(child, device)
    try:
        path.rmdir() if stat.S_ISDIR(facts.st_mode) else path.unlink()
    except PermissionError:
        # A program in the machine set the immutable flag on the file or its directory.
        run("chattr", "-ia", path.parent, path)
        path.rmdir() if stat.S_ISDIR(facts.st_mode) else path.unlink()
