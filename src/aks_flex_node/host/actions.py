"""Actions that change a machine, as frozen data: an action can be shown, compared, journaled and executed later.

All actions are idempotent, and can be interrupted at any time and executed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import TypeAlias

from aks_flex_node.lean_dataclass import frozen


def aside_path(path: str) -> str:
    """Returns where something damaged is moved."""
    return f"{path}.damaged"


class BaseAction(ABC):
    """Base class of all actions."""

    @property
    def subject(self) -> str:
        """Returns the path, unit, module, setting or device that the action changes, or an empty string."""
        return ""

    @property
    def started_unit(self) -> str:
        """Returns the unit that the action starts or restarts, or an empty string."""
        return ""

    @property
    @abstractmethod
    def description(self) -> str:
        """Returns the description for plans and logs, in the imperative."""

    def __str__(self) -> str:
        return self.description


class PathAction(BaseAction):
    path: str

    @property
    def subject(self) -> str:
        return self.path


class NamedAction(BaseAction):
    """An action on a unit or a kernel module."""

    name: str

    @property
    def subject(self) -> str:
        return self.name


class StartingAction(NamedAction):
    @property
    def started_unit(self) -> str:
        return self.name


@frozen
class MakeDirectory(PathAction):
    path: str
    mode: int = 0o755

    @property
    def description(self) -> str:
        return f"create directory {self.path} ({self.mode:04o})"


@frozen
class WriteFile(PathAction):
    """Replaces a whole file. The file has its mode from the moment it exists."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False  # never print the content

    @property
    def description(self) -> str:
        return f"write {self.path} ({self.mode:04o}, {len(self.content)} bytes)"


@frozen
class EditFile(WriteFile):
    """Writes a file that the agent edits, but does not own."""

    @property
    def description(self) -> str:
        return f"edit {self.path}"


@frozen
class MakeLink(PathAction):
    """Creates or replaces a symbolic link atomically."""

    path: str
    target: str

    @property
    def description(self) -> str:
        return f"link {self.path} -> {self.target}"


@frozen
class Remove(PathAction):
    """Removes a file, a link or an empty directory. Does nothing if a file system is mounted there."""

    path: str

    @property
    def description(self) -> str:
        return f"remove {self.path}"


@frozen
class RemoveTree(PathAction):
    """Removes a directory tree. Fails if a file system is mounted in it."""

    path: str

    @property
    def description(self) -> str:
        return f"remove {self.path} recursively"


@frozen
class SetAside(PathAction):
    """Renames something damaged, so that it can be created again and still be examined. The name gets the suffix
    `.damaged`; what was set aside before is replaced.
    """

    path: str

    @property
    def description(self) -> str:
        return f"set {self.path} aside as {aside_path(self.path)}"


@frozen
class PlaceTree(PathAction):
    """Renames a prepared directory to its final path, and then removes the older directory."""

    source: str
    path: str

    @property
    def description(self) -> str:
        return f"install {self.path}"


@frozen
class Unmount(PathAction):
    """Unmounts everything at and below a path. Mounts elsewhere are kept, also those of which it is a copy."""

    path: str

    @property
    def description(self) -> str:
        return f"unmount {self.path}"


@frozen
class SetSysctl(BaseAction):
    key: str
    value: str

    @property
    def subject(self) -> str:
        return self.key

    @property
    def description(self) -> str:
        return f"set {self.key} = {self.value}"


@frozen
class LoadModule(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"load kernel module {self.name}"


@frozen
class UnloadModule(NamedAction):
    """Unloads a module that is not in use."""

    name: str

    @property
    def description(self) -> str:
        return f"unload kernel module {self.name}"


@frozen
class SwapOff(BaseAction):
    device: str

    @property
    def subject(self) -> str:
        return self.device

    @property
    def description(self) -> str:
        return f"disable swap on {self.device}"


@frozen
class SwapOn(BaseAction):
    device: str
    priority: int = -2

    @property
    def subject(self) -> str:
        return self.device

    @property
    def description(self) -> str:
        return f"enable swap on {self.device}"


@frozen
class ReloadUnits(BaseAction):
    @property
    def description(self) -> str:
        return "reload the systemd unit files"


@frozen
class EnableUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"enable {self.name} at boot"


@frozen
class DisableUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"disable {self.name} at boot"


@frozen
class StartUnit(StartingAction):
    """Starts a unit. Waits until it has started if `wait` is set."""

    name: str
    wait: bool = True

    @property
    def description(self) -> str:
        return f"start {self.name}"


@frozen
class RestartUnit(StartingAction):
    name: str
    wait: bool = True

    @property
    def description(self) -> str:
        return f"restart {self.name}"


@frozen
class StopUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"stop {self.name}"


@frozen
class KillGroup(PathAction):
    """Kills all processes of a control group and its descendants, and removes the groups."""

    path: str  # relative to the root of each hierarchy, for example /kubepods.slice
    seconds: float = 3.0  # time between SIGTERM and SIGKILL

    @property
    def description(self) -> str:
        return f"kill the processes of control group {self.path}"


@frozen
class Run(BaseAction):
    """Runs a program that changes the machine, if no other action exists for the change."""

    argv: tuple[str, ...]
    why: str
    input: bytes = field(default=b"", repr=False)
    seconds: float = 30.0
    about: str = ""  # what the change is about, for example a network interface

    @property
    def subject(self) -> str:
        return self.about

    @property
    def description(self) -> str:
        return self.why


Action: TypeAlias = (
    "MakeDirectory | WriteFile | MakeLink | Remove | RemoveTree | SetAside | PlaceTree | Unmount | SetSysctl"
    " | LoadModule | UnloadModule | SwapOff | SwapOn | ReloadUnits | EnableUnit | DisableUnit | StartUnit"
    " | RestartUnit | StopUnit | KillGroup | Run"
)
