"""A host that is killed at a chosen action: before it, in the middle of it, or after it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from aks_flex_node.errors import MachineError
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import MakeLink, PlaceTree, Remove, RemoveTree, WriteFile
from aks_flex_node.host.disk import beside
from aks_flex_node.host.real import RootedHost
from tests.crash.simulated import SimulatedSystem

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Entry

When: TypeAlias = Literal["before", "amid", "after"]


class Crash(BaseException):  # noqa: N818 - it stands for the end of the process, which nobody can catch
    pass


class CrashingHost(RootedHost):
    """A simulated machine; the process that works on it ends at its `at`-th action, if that is not 0."""

    def __init__(self, root: Path, at: int = 0, when: When = "before") -> None:
        super().__init__(root, SimulatedSystem(root))
        self._at = at
        self._when = when
        self.done: list[Action] = []

    def look(self, path: str) -> Entry | None:
        """Whoever runs the tests stands for root."""
        entry = super().look(path)
        return replace(entry, uid=0, gid=0) if entry else None

    def do(self, action: Action) -> None:
        self.done.append(action)
        here = len(self.done) == self._at
        if here and self._when == "before":
            raise Crash(str(action))
        if here and self._when == "amid":
            self._begin(action)
            raise Crash(str(action))
        self._refuse_what_is_mounted(action)
        super().do(action)
        if here:
            raise Crash(str(action))

    def _refuse_what_is_mounted(self, action: Action) -> None:
        """The disk asks the real kernel what is mounted; the mounts of this machine are simulated, too."""
        if isinstance(action, Remove | RemoveTree):
            points = mounts.mount_points((self.read(mounts.MOUNTINFO) or b"").decode())
            if mounts.below(points, action.path):
                raise MachineError("mounted-below", f"{action.path} was not removed: something is mounted there.", "")

    def _begin(self, action: Action) -> None:
        """Do half of it: what is on the disk when the process ends between two of its system calls."""
        match action:
            case WriteFile(path, content):
                beside(self.disk.at(path)).write_bytes(content[: len(content) // 2])
            case MakeLink(path, target):
                beside(self.disk.at(path)).unlink(missing_ok=True)
                beside(self.disk.at(path)).symlink_to(target)
            case PlaceTree(source, path):
                self._half_place(self.disk.at(source), self.disk.at(path))
            case RemoveTree(path):
                for child in sorted(self.disk.at(path).glob("*"))[::2]:
                    shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()

    def _half_place(self, source: Path, place: Path) -> None:
        """Of the moves aside and into place, the first; where there is nothing to move aside, the second."""
        if place.exists():
            place.rename(place.with_name(f".{place.name}.flex-old"))
        elif source.exists():
            source.rename(place)
