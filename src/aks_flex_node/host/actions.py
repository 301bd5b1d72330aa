"""What can be done to a machine, as frozen data: an action can be shown, compared, journaled and done later.

Every action may be done twice with the same result as once, and may be cut off at any instant and done again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class MakeDirectory:
    path: str
    mode: int = 0o755

    def __str__(self) -> str:
        return f"make directory {self.path} ({self.mode:04o})"


@dataclass(frozen=True)
class WriteFile:
    """Put a whole file in place of whatever is there, with its mode from the moment it exists."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    secret: bool = False  # never show what is in it

    def __str__(self) -> str:
        return f"write {self.path} ({self.mode:04o}, {len(self.content)} bytes)"


@dataclass(frozen=True)
class EditFile(WriteFile):
    """Write a file that belongs to somebody else: it is changed in place of being owned."""

    def __str__(self) -> str:
        return f"edit {self.path}"


@dataclass(frozen=True)
class MakeLink:
    """Point a symbolic link somewhere, in one instant, whatever it pointed to before."""

    path: str
    target: str

    def __str__(self) -> str:
        return f"link {self.path} -> {self.target}"


@dataclass(frozen=True)
class Remove:
    """Take away one file or link, or a directory if it is empty. What is mounted there stays."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True)
class RemoveTree:
    """Take away a directory with all that is in it, but nothing that is mounted there, nor through it."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path} and all in it"


@dataclass(frozen=True)
class PlaceTree:
    """Put a directory that was made ready beside it in its place, in one instant; an older one there goes after."""

    source: str
    path: str

    def __str__(self) -> str:
        return f"put {self.path} in place"


@dataclass(frozen=True)
class Unmount:
    path: str

    def __str__(self) -> str:
        return f"unmount {self.path}"


@dataclass(frozen=True)
class SetSysctl:
    key: str
    value: str

    def __str__(self) -> str:
        return f"set {self.key} = {self.value}"


@dataclass(frozen=True)
class LoadModule:
    name: str

    def __str__(self) -> str:
        return f"load kernel module {self.name}"


@dataclass(frozen=True)
class UnloadModule:
    """Unload it if nothing uses it."""

    name: str

    def __str__(self) -> str:
        return f"unload kernel module {self.name}"


@dataclass(frozen=True)
class SwapOff:
    device: str

    def __str__(self) -> str:
        return f"stop swapping to {self.device}"


@dataclass(frozen=True)
class SwapOn:
    device: str
    priority: int = -2

    def __str__(self) -> str:
        return f"swap to {self.device} again"


@dataclass(frozen=True)
class ReloadUnits:
    def __str__(self) -> str:
        return "tell systemd to read its unit files again"


@dataclass(frozen=True)
class EnableUnit:
    name: str

    def __str__(self) -> str:
        return f"enable {self.name} at boot"


@dataclass(frozen=True)
class DisableUnit:
    name: str

    def __str__(self) -> str:
        return f"disable {self.name} at boot"


@dataclass(frozen=True)
class StartUnit:
    """Start it, and do not wait until it has started unless `wait`."""

    name: str
    wait: bool = True

    def __str__(self) -> str:
        return f"start {self.name}"


@dataclass(frozen=True)
class RestartUnit:
    name: str
    wait: bool = True

    def __str__(self) -> str:
        return f"restart {self.name}"


@dataclass(frozen=True)
class StopUnit:
    name: str

    def __str__(self) -> str:
        return f"stop {self.name}"


@dataclass(frozen=True)
class KillGroup:
    """End every process of a control group and of all below it, then take the empty groups away."""

    path: str  # below each hierarchy's root, for example /kubepods.slice
    seconds: float = 3.0  # how long they may take to end by themselves

    def __str__(self) -> str:
        return f"end the processes of control group {self.path}"


@dataclass(frozen=True)
class Run:
    """Run a program that changes the machine in a way that has no action of its own."""

    argv: tuple[str, ...]
    why: str
    input: bytes = field(default=b"", repr=False)
    seconds: float = 30.0

    def __str__(self) -> str:
        return self.why


Action: TypeAlias = (
    "MakeDirectory | WriteFile | MakeLink | Remove | RemoveTree | PlaceTree | Unmount | SetSysctl | LoadModule"
    " | UnloadModule | SwapOff | SwapOn | ReloadUnits | EnableUnit | DisableUnit | StartUnit | RestartUnit | StopUnit"
    " | KillGroup | Run"
)
