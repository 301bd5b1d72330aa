"""The Host interface: read-only queries, and one method that executes actions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action


class EntryKind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"  # devices, sockets, pipes


@frozen
class FileEntry:
    """A file system entry. Links are not followed."""

    kind: EntryKind
    mode: int = 0o644  # permission bits
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""  # of a link
    changed: int = 0  # ctime in nanoseconds; differs after any change of content or mode

    @property
    def roots(self) -> bool:
        """Returns whether owner and group are root."""
        return self.uid == self.gid == 0


@frozen
class CommandResult:
    """The result of a program."""

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


STABLE_SECONDS = 30.0  # uptime after which a service counts as stable


@frozen
class UnitState:
    """The state of a systemd unit."""

    name: str
    exists: bool = False
    enabled: bool = False
    active: str = "inactive"  # active, activating, failed, inactive …
    needs_reload: bool = False  # the unit file has changed since systemd read it
    restarts: int = 0
    pid: int = 0
    invocation: str = ""  # different after every start
    started: float = 0.0  # seconds on the monotonic clock

    @property
    def running(self) -> bool:
        return self.active in {"active", "activating", "reloading"}

    @property
    def is_stopped(self) -> bool:
        """Whether the unit exists, but neither runs nor is started again by systemd: a person has stopped it."""
        return self.exists and self.active in {"inactive", "deactivating"}

    def is_stable(self, now: float) -> bool:
        """Returns whether the unit has been active for a while. systemd does not reset the restart count of a
        recovered service.
        """
        return self.active == "active" and now - self.started >= STABLE_SECONDS


MISSING_PROGRAM = 127  # exit code if the program does not exist


class Host(Protocol):
    """A machine."""

    @property
    def live(self) -> bool:
        """Returns whether a kernel and systemd are running, as opposed to an image."""
        ...

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file, or None if it does not exist."""
        ...

    def digest(self, path: str) -> str:
        """Returns the SHA-256 of a file of any size, or an empty string if it does not exist."""
        ...

    def stat(self, path: str) -> FileEntry | None:
        """Returns the entry at a path, or None if it does not exist."""
        ...

    def list_dir(self, path: str) -> tuple[str, ...]:
        """Returns the sorted names in a directory, or an empty tuple if it does not exist."""
        ...

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        """Runs a read-only program. A missing program returns exit code 127."""
        ...

    def unit(self, name: str) -> UnitState:
        """Returns the state of a systemd unit."""
        ...

    def apply(self, action: Action) -> None:
        """Executes an action. Raises MachineError if it fails."""
        ...


def read_text(host: Host, path: str) -> str:
    """Returns the text of a file; empty if it does not exist."""
    return (host.read(path) or b"").decode(errors="replace")
