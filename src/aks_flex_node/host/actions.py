"""Actions that change a machine, as frozen data: an action can be shown, compared, journaled and executed later.

All actions are idempotent, and can be interrupted at any time and executed again.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, TypeAlias

from aks_flex_node.lean_dataclass import frozen


def aside_path(path: str) -> str:
    """Returns where something damaged is moved."""
    return f"{path}.damaged"


class BaseAction:
    """Base class of all actions."""

    sentence: ClassVar[str]  # what the action does, in the imperative; {0} is the action

    @property
    def subject(self) -> str:
        """Returns the path, unit, module, setting or device that the action changes, or an empty string."""
        return ""

    @property
    def started_unit(self) -> str:
        """Returns the unit that the action starts or restarts, or an empty string."""
        return ""

    @property
    def description(self) -> str:
        """Returns the description for plans and logs."""
        return self.sentence.format(self)

    def __str__(self) -> str:
        return self.description


@frozen
class PathAction(BaseAction):
    path: str

    @property
    def subject(self) -> str:
        return self.path


@frozen
class NamedAction(BaseAction):
    """An action on a unit or a kernel module."""

    name: str

    @property
    def subject(self) -> str:
        return self.name


@frozen
class StartingAction(NamedAction):
    """Starts or restarts a unit. Waits until it has started if `wait` is set."""

    wait: bool = True

    @property
    def started_unit(self) -> str:
        return self.name


@frozen
class MakeDirectory(PathAction):
    mode: int = 0o755

    sentence = "create directory {0.path} ({0.mode:04o})"


@frozen
class WriteFile(PathAction):
    """Replaces a whole file. The file has its mode from the moment it exists."""

    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False  # never print the content

    sentence = "write {0.path} ({0.mode:04o}, {0.size} bytes)"

    @property
    def size(self) -> int:
        return len(self.content)


@frozen
class EditFile(WriteFile):
    """Writes a file that the agent edits, but does not own."""

    sentence = "edit {0.path}"


@frozen
class MakeLink(PathAction):
    """Creates or replaces a symbolic link atomically."""

    target: str

    sentence = "link {0.path} -> {0.target}"


@frozen
class Remove(PathAction):
    """Removes a file, a link or an empty directory. Does nothing if a file system is mounted there."""

    sentence = "remove {0.path}"


@frozen
class RemoveTree(PathAction):
    """Removes a directory tree. Fails if a file system is mounted in it."""

    sentence = "remove {0.path} recursively"


@frozen
class SetAside(PathAction):
    """Renames something damaged, so that it can be created again and still be examined. The name gets the suffix
    `.damaged`; what was set aside before is replaced.
    """

    sentence = "set {0.path} aside as {0.aside}"

    @property
    def aside(self) -> str:
        return aside_path(self.path)


@frozen
class PlaceTree(BaseAction):
    """Renames a prepared directory to its final path, and then removes the older directory."""

    source: str
    path: str

    sentence = "install {0.path}"

    @property
    def subject(self) -> str:
        return self.path


@frozen
class Unmount(PathAction):
    """Unmounts everything at and below a path. Mounts elsewhere are kept, also those of which it is a copy."""

    sentence = "unmount {0.path}"


@frozen
class SetSysctl(BaseAction):
    key: str
    value: str

    sentence = "set {0.key} = {0.value}"

    @property
    def subject(self) -> str:
        return self.key


@frozen
class LoadModule(NamedAction):
    sentence = "load kernel module {0.name}"


@frozen
class UnloadModule(NamedAction):
    """Unloads a module that is not in use."""

    sentence = "unload kernel module {0.name}"


@frozen
class SwapOff(PathAction):
    sentence = "disable swap on {0.path}"


@frozen
class SwapOn(PathAction):
    priority: int = -2

    sentence = "enable swap on {0.path}"


@frozen
class ReloadUnits(BaseAction):
    sentence = "reload the systemd unit files"


@frozen
class EnableUnit(NamedAction):
    sentence = "enable {0.name} at boot"


@frozen
class DisableUnit(NamedAction):
    sentence = "disable {0.name} at boot"


@frozen
class StartUnit(StartingAction):
    sentence = "start {0.name}"


@frozen
class RestartUnit(StartingAction):
    sentence = "restart {0.name}"


@frozen
class StopUnit(NamedAction):
    sentence = "stop {0.name}"


@frozen
class KillGroup(PathAction):
    """Kills all processes of a control group and its descendants, and removes the groups. The path is relative to the
    root of each hierarchy, for example /kubepods.slice.
    """

    seconds: float = 3.0  # time between SIGTERM and SIGKILL

    sentence = "kill the processes of control group {0.path}"


@frozen
class Run(BaseAction):
    """Runs a program that changes the machine, if no other action exists for the change."""

    argv: tuple[str, ...]
    why: str
    input: bytes = field(default=b"", repr=False)
    seconds: float = 30.0
    about: str = ""  # what the change is about, for example a network interface

    sentence = "{0.why}"

    @property
    def subject(self) -> str:
        return self.about


Action: TypeAlias = (
    "MakeDirectory | WriteFile | MakeLink | Remove | RemoveTree | SetAside | PlaceTree | Unmount | SetSysctl"
    " | LoadModule | UnloadModule | SwapOff | SwapOn | ReloadUnits | EnableUnit | DisableUnit | StartUnit"
    " | RestartUnit | StopUnit | KillGroup | Run"
)
