"""Cgroups of a lab: every process of a lab runs in one of them, so that all can be found and stopped.

One lab has one cgroup in every hierarchy, with a child for each component and each machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.errors import HostError, LabError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "aks-flex-lab."
# The controllers that a kubelet requires.
REQUIRED_CONTROLLERS = {"cpu", "memory", "pids"}
# Joins the cgroups before `--`, then executes the program after it.
JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class CgroupHierarchy:
    """One mounted cgroup hierarchy."""

    mount: Path
    unified: bool
    controllers: frozenset[str]
    current: str  # the cgroup of this process

    @property
    def base(self) -> Path:
        """The cgroup that contains the cgroups of labs."""
        return self.mount if self.is_only_hierarchy else self.mount / self.current.lstrip("/")

    @property
    def is_only_hierarchy(self) -> bool:
        """Whether this is the unified hierarchy (cgroup v2), as on current distributions."""
        return self.unified and (self.mount / "cgroup.controllers").exists() and self.mount == Path("/sys/fs/cgroup")


def parse_hierarchies(mounts: str, own: str) -> Iterator[CgroupHierarchy]:
    """Returns the hierarchies from the texts of /proc/self/mounts and /proc/self/cgroup."""
    current = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        current[names] = path
    for line in mounts.splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup2":
            yield CgroupHierarchy(Path(mount), True, frozenset(), current.get("", "/"))
        elif kind == "cgroup":
            for names, path in current.items():
                controllers = set(names.split(",")) if names else set()
                if controllers and controllers <= set(options.split(",")):
                    yield CgroupHierarchy(Path(mount), False, frozenset(controllers), path)


def hierarchies() -> list[CgroupHierarchy]:
    proc = Path("/proc/self")
    found = list(parse_hierarchies((proc / "mounts").read_text(), (proc / "cgroup").read_text()))
    if not found:
        raise HostError(
            "cgroups-unavailable",
            "No cgroup hierarchy is mounted on this machine.",
            "Run `mount -t cgroup2 none /sys/fs/cgroup`, then retry.",
        )
    return list({hierarchy.mount: hierarchy for hierarchy in found}.values())


def enabled_controllers() -> list[str]:
    """Returns the controllers that the root of a cgroup v2 hierarchy enables for its children; none for cgroup v1."""
    return sorted(name for top in _unified_root() for name in (top / "cgroup.subtree_control").read_text().split())


def disable_other_controllers(controllers: Iterable[str]) -> None:
    """Disables all other controllers at the root, except those that other cgroups of the host use."""
    for top in _unified_root():
        for name in set(enabled_controllers()) - set(controllers):
            with contextlib.suppress(OSError):
                (top / "cgroup.subtree_control").write_text(f"-{name}")


def _unified_root() -> list[Path]:
    return [hierarchy.mount for hierarchy in hierarchies() if hierarchy.is_only_hierarchy]


def join_command(groups: Iterable[Path], argv: Iterable[str | Path]) -> list[str]:
    """Returns the command that joins these cgroups, then executes `argv` with the same process ID."""
    return ["sh", "-c", JOIN_SCRIPT, "join", *(str(group) for group in groups), "--", *(str(word) for word in argv)]


def cgroups_of_process(pid: int) -> list[Path]:
    """Returns the cgroups of a process, one in each hierarchy."""
    mounts = Path("/proc/self/mounts").read_text()
    of_process = parse_hierarchies(mounts, Path(f"/proc/{pid}/cgroup").read_text())
    return list({found.mount: found.mount / found.current.lstrip("/") for found in of_process}.values())


@dataclass(frozen=True)
class CgroupFreezer:
    """The files by which one kind of hierarchy freezes a cgroup."""

    switch: str
    on: str
    off: str
    state: str  # the file that shows whether the cgroup is frozen
    frozen: str

    def freeze(self, group: Path, seconds: float = 5) -> None:
        if not (group / self.switch).exists():
            return
        (group / self.switch).write_text(self.on)
        end = time.monotonic() + seconds
        while self.frozen not in (group / self.state).read_text() and time.monotonic() < end:
            time.sleep(0.005)

    def thaw(self, group: Path) -> None:
        with contextlib.suppress(OSError):  # it was never frozen, or was removed
            if (group / self.switch).read_text().strip() != self.off:
                (group / self.switch).write_text(self.off)


FREEZERS = (
    CgroupFreezer("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
    CgroupFreezer("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
)


@dataclass(frozen=True)
class LabCgroups:
    """The cgroups of one lab."""

    lab: str

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.lab}"

    def roots(self) -> list[Path]:
        """Returns the lab's cgroup in each hierarchy, at any position where an earlier command created it."""
        found = []
        for hierarchy in hierarchies():
            if hierarchy.is_only_hierarchy:
                found += [top for top in [hierarchy.base / self.name] if top.exists()]
                continue
            for at, groups, _ in os.walk(hierarchy.mount):
                if self.name in groups:
                    found.append(Path(at) / self.name)
                # A cgroup inside a lab is not the root of another lab.
                groups[:] = [group for group in groups if not group.startswith(PREFIX)]
        return found

    def make(self, leaf: str) -> list[Path]:
        """Creates the missing cgroups of a component or machine, and returns the cgroups to join."""
        existing = self.roots()
        made = []
        for hierarchy in hierarchies():
            mine = [top for top in existing if top.is_relative_to(hierarchy.mount)]
            top = mine[0] if mine else hierarchy.base / self.name
            for group in (top, top / leaf):
                _make_cgroup(group, hierarchy)
            made.append(top / leaf)
        return made

    def join_command(self, leaf: str, argv: Iterable[str | Path]) -> list[str]:
        """Returns the command that runs `argv` in the lab's cgroup."""
        return join_command(self.make(leaf), argv)

    def pids(self, leaf: str = "") -> set[int]:
        """Returns the processes of the lab, or of one leaf cgroup."""
        found: set[int] = set()
        for top in self.roots():
            for at, _, _ in os.walk(top / leaf):
                found |= _procs(Path(at))
        return found

    def kill(self, leaf: str = "", *, seconds: float = 60) -> None:
        """Kills all processes of the lab, or of one leaf cgroup, and waits until they are gone."""
        end = time.monotonic() + seconds
        while pids := self.pids(leaf) - {os.getpid()}:
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            self._thaw(leaf)  # Killed processes of a frozen cgroup exit only when it is thawed.
            if time.monotonic() > end:
                raise LabError(
                    "process-not-stopped",
                    f"Processes {sorted(pids)} of the lab do not exit after SIGKILL.",
                    "They wait in the kernel for a device or a file system. Read /proc/PID/stack.",
                )
            time.sleep(0.01)

    @contextlib.contextmanager
    def frozen(self, leaf: str) -> Iterator[None]:
        """Freezes all processes of a leaf cgroup for the block."""
        try:
            for top in self.roots():
                for freezer in FREEZERS:
                    freezer.freeze(top / leaf)
            yield
        finally:
            self._thaw(leaf)

    def _thaw(self, leaf: str) -> None:
        for top in self.roots():
            for at, _, _ in os.walk(top / leaf):
                for freezer in FREEZERS:
                    freezer.thaw(Path(at))

    def remove(self, leaf: str = "", *, seconds: float = 60) -> None:
        """Removes the cgroups, and kills processes that have entered them since `kill`."""
        for top in self.roots():
            for at, _, _ in os.walk(top / leaf, topdown=False):
                _rmdir(Path(at), seconds)


def _make_cgroup(group: Path, hierarchy: CgroupHierarchy) -> None:
    if group.exists():
        return
    try:
        group.mkdir()
    except OSError as error:
        raise HostError(
            "cgroup-failed",
            f"The cgroup {group} cannot be created: {error.strerror}.",
            "Run the lab as root on the host, or in a container with a writable /sys/fs/cgroup.",
        ) from error
    if "cpuset" in hierarchy.controllers:
        # A new cpuset accepts no process until its CPUs and memory nodes are set.
        for key in ("cpuset.cpus", "cpuset.mems"):
            (group / key).write_text((group.parent / key).read_text())
    if hierarchy.is_only_hierarchy:
        _enable_controllers(group)


def _enable_controllers(group: Path) -> None:
    """Enables the parent's controllers for a new cgroup, one at a time, because some cannot be enabled everywhere."""
    for name in (group.parent / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.subtree_control").write_text(f"+{name}")
    missing = REQUIRED_CONTROLLERS - set((group / "cgroup.controllers").read_text().split())
    if missing:
        group.rmdir()
        raise HostError(
            "cgroup-failed",
            f"The cgroup {group} lacks the controllers {', '.join(sorted(missing))}.",
            "Run the lab directly on the host. In a container, the top cgroup must not contain processes.",
        )


def _procs(group: Path) -> set[int]:
    try:
        return {int(line) for line in (group / "cgroup.procs").read_text().split()} - {0}
    except OSError:
        return set()


def _signal(pid: int, sig: signal.Signals) -> None:
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        return


def _rmdir(group: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # The kernel releases the cgroup shortly after the process exits. A process that was starting may have
            # entered it in the meantime.
            for pid in _procs(group) - {os.getpid()}:
                _signal(pid, signal.SIGKILL)
            if time.monotonic() > end:
                raise LabError(
                    "process-not-stopped",
                    f"The cgroup {group} cannot be removed, because it is not empty.",
                    "Run the same command again.",
                ) from error
            time.sleep(0.01)
        else:
            return
