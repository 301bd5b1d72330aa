"""The Host interface: a few read-only queries, and one way to act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action


class EntryKind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"  # devices, sockets, pipes


@dataclass(frozen=True)
class FileEntry:
    """What stands at a path; a link is not followed."""

    kind: EntryKind
    mode: int = 0o644  # permission bits
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""  # of a link
    changed: int = 0  # nanoseconds; differs after any change to content or mode

    @property
    def roots(self) -> bool:
        """Whether it belongs to root alone."""
        return self.uid == self.gid == 0


@dataclass(frozen=True)
class CommandResult:
    """What a program said that changes nothing."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


STABLE_SECONDS = 30.0  # seconds after which a service that fell again and again has stopped doing so


@dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit."""

    name: str
    exists: bool = False
    enabled: bool = False
    active: str = "inactive"  # active, activating, failed, inactive …
    sub: str = "dead"
    needs_reload: bool = False  # its file has changed since systemd read it
    restarts: int = 0
    pid: int = 0
    result: str = "success"
    invocation: str = ""  # another one after every start
    started: float = 0.0  # seconds on the machine's monotonic clock

    @property
    def running(self) -> bool:
        return self.active in {"active", "activating", "reloading"}

    def is_stable(self, now: float) -> bool:
        """Whether it has been up for a while: systemd does not forget the restarts of a service that was mended."""
        return self.active == "active" and now - self.started >= STABLE_SECONDS


MISSING_PROGRAM = 127  # the code of an Answer when there is no such program here


class Host(Protocol):
    """One machine."""

    @property
    def live(self) -> bool:
        """Whether there is a kernel and a systemd to speak to, and not only files for the next boot."""
        ...

    def read(self, path: str) -> bytes | None:
        """A file's content; None when there is none."""
        ...

    def digest(self, path: str) -> str:
        """The sha256 of a file's content, however large it is; empty when there is none."""
        ...

    def stat(self, path: str) -> FileEntry | None:
        """What stands at a path; None when nothing does."""
        ...

    def list_dir(self, path: str) -> tuple[str, ...]:
        """What is in a directory, sorted; nothing when there is none."""
        ...

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        """What a program says that only looks. A program that is missing answers with code 127."""
        ...

    def unit(self, name: str) -> UnitState:
        """What systemd says of a unit."""
        ...

    def apply(self, action: Action) -> None:
        """Carry an action out, or raise a MachineError that names it."""
        ...
