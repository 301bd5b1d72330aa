"""A simulated machine, and snapshots of the disk state after a process is killed at each point."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import MachineError
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import MakeLink, PlaceTree, Remove, RemoveTree, WriteFile
from aks_flex_node.host.disk import backup_path, temporary_path
from aks_flex_node.host.real import RootedHost
from tests.crash.simulated_host import SimulatedSystem

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import FileEntry

HAVE_A_MIDDLE = (WriteFile, MakeLink, PlaceTree, RemoveTree)  # all others are one system call or one command


class SimulatedHost(RootedHost):
    def __init__(self, root: Path) -> None:
        super().__init__(root, SimulatedSystem(root))
        self.done: list[Action] = []

    def stat(self, path: str) -> FileEntry | None:
        """Reports all files as owned by root, because another user may run the tests."""
        entry = super().stat(path)
        return replace(entry, uid=0, gid=0) if entry else None

    def apply(self, action: Action) -> None:
        self.done.append(action)
        self._refuse_what_is_mounted(action)
        super().apply(action)

    def _refuse_what_is_mounted(self, action: Action) -> None:
        """Checks the simulated mounts: the disk would read those of the real kernel."""
        if isinstance(action, Remove | RemoveTree):
            points = mounts.mount_points((self.read(mounts.MOUNTINFO) or b"").decode())
            if mounts.mounts_below(points, action.path):
                raise MachineError(
                    "mount-below-path", f"{action.path} was not removed: something is mounted there.", ""
                )


class Crash(BaseException):
    pass


class CrashingHost(SimulatedHost):
    """A host that ends the process before its `at`-th action, or in the middle of it."""

    def __init__(self, root: Path, at: int, *, amid: bool) -> None:
        super().__init__(root)
        self._at = at
        self._amid = amid

    def apply(self, action: Action) -> None:
        if len(self.done) + 1 == self._at:
            if self._amid:
                begin(self, action)
            raise Crash(str(action))
        super().apply(action)


@dataclass(frozen=True)
class Point:
    """A snapshot of a machine at the moment when a process was killed."""

    name: str
    root: Path


class PhotographedHost(SimulatedHost):
    """Takes a snapshot of the machine before each action, in its middle if it has several steps, and at the end.

    Only actions change the machine, so the state after one is the state before the next.
    """

    def __init__(self, root: Path, album: Path) -> None:
        super().__init__(root)
        self._album = album
        self.points: list[Point] = []

    def apply(self, action: Action) -> None:
        number = len(self.done) + 1
        self.take(f"before action {number}: {action}")
        if isinstance(action, HAVE_A_MIDDLE):
            begin(SimulatedHost(self.take(f"amid action {number}: {action}")), action)
        super().apply(action)

    def take(self, name: str) -> Path:
        self.points.append(Point(name, self._album / f"{len(self.points):03}"))
        shutil.copytree(self.disk.root, self.points[-1].root, symlinks=True)
        return self.points[-1].root


def begin(host: SimulatedHost, action: Action) -> None:
    """Performs half of an action: the disk state when the process ends between two system calls."""
    match action:
        case WriteFile(path, content):
            temporary_path(host.disk.at(path)).write_bytes(content[: len(content) // 2])
        case MakeLink(path, target):
            temporary_path(host.disk.at(path)).unlink(missing_ok=True)
            temporary_path(host.disk.at(path)).symlink_to(target)
        case PlaceTree(source, path):
            _half_place(host.disk.at(source), host.disk.at(path))
        case RemoveTree(path):
            for child in sorted(host.disk.at(path).glob("*"))[::2]:
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def _half_place(source: Path, place: Path) -> None:
    """Performs the first two of three steps (move aside, move in, remove), or the only step without an old tree."""
    if place.exists():
        place.rename(backup_path(place))
    if source.exists():
        source.rename(place)
