"""What can be done to a machine, as frozen data: an action can be shown, compared, journaled and done later.

Every action may be done twice with the same result as once, and may be cut off at any instant and done again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias


class BaseAction(ABC):
    """What every action can say of itself."""

    @property
    def subject(self) -> str:
        """The path, unit, module, setting or device that it is about; empty for an action without one."""
        return ""

    @property
    def started_unit(self) -> str:
        """The unit that it starts or restarts; empty for any other action."""
        return ""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it does, as plans and logs show it."""

    def __str__(self) -> str:
        return self.description


class PathAction(BaseAction):
    path: str

    @property
    def subject(self) -> str:
        return self.path


class NamedAction(BaseAction):
    """About a unit or a kernel module."""

    name: str

    @property
    def subject(self) -> str:
        return self.name


class StartingAction(NamedAction):
    @property
    def started_unit(self) -> str:
        return self.name


@dataclass(frozen=True)
class MakeDirectory(PathAction):
    path: str
    mode: int = 0o755

    @property
    def description(self) -> str:
        return f"make directory {self.path} ({self.mode:04o})"


@dataclass(frozen=True)
class WriteFile(PathAction):
    """Put a whole file in place of whatever is there, with its mode from the moment it exists."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False  # never show what is in it

    @property
    def description(self) -> str:
        return f"write {self.path} ({self.mode:04o}, {len(self.content)} bytes)"


@dataclass(frozen=True)
class EditFile(WriteFile):
    """Write a file that belongs to somebody else: it is changed in place of being owned."""

    @property
    def description(self) -> str:
        return f"edit {self.path}"


@dataclass(frozen=True)
class MakeLink(PathAction):
    """Point a symbolic link somewhere, in one instant, whatever it pointed to before."""

    path: str
    target: str

    @property
    def description(self) -> str:
        return f"link {self.path} -> {self.target}"


@dataclass(frozen=True)
class Remove(PathAction):
    """Take away one file or link, or a directory if it is empty. What is mounted there stays."""

    path: str

    @property
    def description(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True)
class RemoveTree(PathAction):
    """Take away a directory with all that is in it, but nothing that is mounted there, nor through it."""

    path: str

    @property
    def description(self) -> str:
        return f"remove {self.path} and all in it"


@dataclass(frozen=True)
class PlaceTree(PathAction):
    """Put a directory that was made ready beside it in its place, in one instant; an older one there goes after."""

    source: str
    path: str

    @property
    def description(self) -> str:
        return f"put {self.path} in place"


@dataclass(frozen=True)
class Unmount(PathAction):
    path: str

    @property
    def description(self) -> str:
        return f"unmount {self.path}"


@dataclass(frozen=True)
class SetSysctl(BaseAction):
    key: str
    value: str

    @property
    def subject(self) -> str:
        return self.key

    @property
    def description(self) -> str:
        return f"set {self.key} = {self.value}"


@dataclass(frozen=True)
class LoadModule(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"load kernel module {self.name}"


@dataclass(frozen=True)
class UnloadModule(NamedAction):
    """Unload it if nothing uses it."""

    name: str

    @property
    def description(self) -> str:
        return f"unload kernel module {self.name}"


@dataclass(frozen=True)
class SwapOff(BaseAction):
    device: str

    @property
    def subject(self) -> str:
        return self.device

    @property
    def description(self) -> str:
        return f"stop swapping to {self.device}"


@dataclass(frozen=True)
class SwapOn(BaseAction):
    device: str
    priority: int = -2

    @property
    def subject(self) -> str:
        return self.device

    @property
    def description(self) -> str:
        return f"swap to {self.device} again"


@dataclass(frozen=True)
class ReloadUnits(BaseAction):
    @property
    def description(self) -> str:
        return "tell systemd to read its unit files again"


@dataclass(frozen=True)
class EnableUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"enable {self.name} at boot"


@dataclass(frozen=True)
class DisableUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"disable {self.name} at boot"


@dataclass(frozen=True)
class StartUnit(StartingAction):
    """Start it, and do not wait until it has started unless `wait`."""

    name: str
    wait: bool = True

    @property
    def description(self) -> str:
        return f"start {self.name}"


@dataclass(frozen=True)
class RestartUnit(StartingAction):
    name: str
    wait: bool = True

    @property
    def description(self) -> str:
        return f"restart {self.name}"


@dataclass(frozen=True)
class StopUnit(NamedAction):
    name: str

    @property
    def description(self) -> str:
        return f"stop {self.name}"


@dataclass(frozen=True)
class KillGroup(PathAction):
    """End every process of a control group and of all below it, then take the empty groups away."""

    path: str  # below each hierarchy's root, for example /kubepods.slice
    seconds: float = 3.0  # how long they may take to end by themselves

    @property
    def description(self) -> str:
        return f"end the processes of control group {self.path}"


@dataclass(frozen=True)
class Run(BaseAction):
    """Run a program that changes the machine in a way that has no action of its own."""

    argv: tuple[str, ...]
    why: str
    input: bytes = field(default=b"", repr=False)
    seconds: float = 30.0

    @property
    def description(self) -> str:
        return self.why


Action: TypeAlias = (
    "MakeDirectory | WriteFile | MakeLink | Remove | RemoveTree | PlaceTree | Unmount | SetSysctl | LoadModule"
    " | UnloadModule | SwapOff | SwapOn | ReloadUnits | EnableUnit | DisableUnit | StartUnit | RestartUnit | StopUnit"
    " | KillGroup | Run"
)
