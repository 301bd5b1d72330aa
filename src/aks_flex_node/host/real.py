"""The real host: this machine, or a directory with the files of another machine (an image)."""

from __future__ import annotations

from pathlib import Path

from aks_flex_node.host.actions import Action, DisableUnit, EnableUnit
from aks_flex_node.host.disk import FileAction, HostDisk
from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult, FileEntry, UnitState
from aks_flex_node.host.system import HostSystem, LiveSystem

UNITS = "/etc/systemd/system"


class RootedHost:
    """A machine whose files are below a directory, with a running system or, for an image, without one."""

    def __init__(self, root: Path, system: HostSystem | None = None) -> None:
        self.disk = HostDisk(root)
        self.system: HostSystem = system or OfflineSystem(self.disk)

    @property
    def live(self) -> bool:
        return self.system.live

    def read(self, path: str) -> bytes | None:
        return self.disk.read(path)

    def digest(self, path: str) -> str:
        return self.disk.digest(path)

    def stat(self, path: str) -> FileEntry | None:
        return self.disk.look(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        return self.disk.names(path)

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        return self.system.ask(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return self.system.unit(name)

    def apply(self, action: Action) -> None:
        if isinstance(action, FileAction):
            self.disk.do(action)
        else:
            self.system.do(action)


class RealHost(RootedHost):
    """This machine."""

    def __init__(self) -> None:
        super().__init__(Path("/"), LiveSystem())


class OfflineSystem:
    """The system of an image: units can be enabled for the first boot, but nothing runs."""

    live = False

    def __init__(self, disk: HostDisk) -> None:
        self._disk = disk

    def ask(self, *argv: str, seconds: float) -> CommandResult:  # noqa: ARG002
        return CommandResult(MISSING_PROGRAM, err=f"{argv[0]}: programs cannot run in an image")

    def unit(self, name: str) -> UnitState:
        exists = self._disk.look(f"{UNITS}/{name}") is not None
        return UnitState(name, exists=exists, enabled=self._wants_link(name).is_symlink())

    def do(self, action: Action) -> None:
        match action:
            case EnableUnit(name):
                link = self._wants_link(name)
                link.parent.mkdir(exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(f"{UNITS}/{name}")
            case DisableUnit(name):
                self._wants_link(name).unlink(missing_ok=True)

    def _wants_link(self, name: str) -> Path:
        return self._disk.at(f"{UNITS}/multi-user.target.wants") / name
