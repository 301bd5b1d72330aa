"""Mounts below a directory, and removing a directory without ever following one."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from aks_flex_lab.errors import LabError
from aks_flex_lab.processes import run


def parse_mounts(mountinfo: str) -> list[Path]:
    """The mount points, in the order they were made."""
    return [Path(_unescape(line.split()[4])) for line in mountinfo.splitlines()]


def mounts_below(directory: Path) -> list[Path]:
    """What is mounted at or below a directory, the innermost first."""
    points = parse_mounts(Path("/proc/self/mountinfo").read_text())
    return [point for point in reversed(points) if point.is_relative_to(directory)]


def unmount_below(directory: Path) -> None:
    for point in mounts_below(directory):
        run("umount", "--", point)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, and refuse to cross into anything mounted there."""
    if not directory.exists():
        return
    if inside := mounts_below(directory):
        raise LabError(
            "mount-conflict",
            f"{directory} was not removed, because {inside[0]} is mounted in it.",
            f"Run `umount {inside[0]}`, then try again.",
        )
    _remove(directory, directory.lstat().st_dev)


def _remove(path: Path, device: int) -> None:
    facts = path.lstat()
    if facts.st_dev != device:
        raise LabError(
            "mount-conflict",
            f"{path} was not removed, because it lies on another file system.",
            f"Run `umount {path}`, then try again.",
        )
    if stat.S_ISDIR(facts.st_mode):
        with os.scandir(path) as entries:
            children = [Path(entry.path) for entry in entries]
        for child in children:
            _remove(child, device)
    try:
        path.rmdir() if stat.S_ISDIR(facts.st_mode) else path.unlink()
    except PermissionError:
        # Someone inside made it, or what it is in, immutable.
        run("chattr", "-ia", path.parent, path)
        path.rmdir() if stat.S_ISDIR(facts.st_mode) else path.unlink()


def _unescape(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)
