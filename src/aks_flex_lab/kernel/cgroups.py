"""Cgroups: every process of a lab runs in a cgroup of that lab, so none can be lost.

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
# What a kubelet in a machine cannot do without.
REQUIRED_CONTROLLERS = {"cpu", "memory", "pids"}
# Joins every group named before `--`, then becomes the program named after it.
JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class CgroupHierarchy:
    """One mounted tree of control groups."""

    mount: Path
    unified: bool
    controllers: frozenset[str]
    current: str  # the group that this process is in

    @property
    def base(self) -> Path:
        """The group below which labs are made."""
        return self.mount if self.is_only_hierarchy else self.mount / self.current.lstrip("/")

    @property
    def is_only_hierarchy(self) -> bool:
        """Whether this is the only hierarchy, as on today's distributions."""
        return self.unified and (self.mount / "cgroup.controllers").exists() and self.mount == Path("/sys/fs/cgroup")


def parse_hierarchies(mounts: str, own: str) -> Iterator[CgroupHierarchy]:
    """Bring together what /proc/self/mounts and /proc/self/cgroup say."""
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
            "No control group hierarchy is mounted on this machine.",
            "Mount one (`mount -t cgroup2 none /sys/fs/cgroup`), then try again.",
        )
    return list({hierarchy.mount: hierarchy for hierarchy in found}.values())


def enabled_controllers() -> list[str]:
    """The controllers that the top of an only hierarchy passes on; none where the hierarchies are older."""
    return sorted(name for top in _unified_root() for name in (top / "cgroup.subtree_control").read_text().split())


def disable_other_controllers(controllers: Iterable[str]) -> None:
    """Pass on no others than these at the top, except what the machine itself has come to use below."""
    for top in _unified_root():
        for name in set(enabled_controllers()) - set(controllers):
            with contextlib.suppress(OSError):
                (top / "cgroup.subtree_control").write_text(f"-{name}")


def _unified_root() -> list[Path]:
    return [hierarchy.mount for hierarchy in hierarchies() if hierarchy.is_only_hierarchy]


def join_command(groups: Iterable[Path], argv: Iterable[str | Path]) -> list[str]:
    """The command that joins these groups, then becomes `argv` under the same process id."""
    return ["sh", "-c", JOIN_SCRIPT, "join", *(str(group) for group in groups), "--", *(str(word) for word in argv)]


def cgroups_of_process(pid: int) -> list[Path]:
    """The groups that a process is in, one in each hierarchy."""
    mounts = Path("/proc/self/mounts").read_text()
    of_process = parse_hierarchies(mounts, Path(f"/proc/{pid}/cgroup").read_text())
    return list({found.mount: found.mount / found.current.lstrip("/") for found in of_process}.values())


@dataclass(frozen=True)
class CgroupFreezer:
    """How one kind of hierarchy holds a group still."""

    switch: str
    on: str
    off: str
    state: str  # the file that tells whether it has come into effect
    frozen: str

    def freeze(self, group: Path, seconds: float = 5) -> None:
        if not (group / self.switch).exists():
            return
        (group / self.switch).write_text(self.on)
        end = time.monotonic() + seconds
        while self.frozen not in (group / self.state).read_text() and time.monotonic() < end:
            time.sleep(0.005)

    def thaw(self, group: Path) -> None:
        with contextlib.suppress(OSError):  # it was never frozen, or has gone by itself
            if (group / self.switch).read_text().strip() != self.off:
                (group / self.switch).write_text(self.off)


FREEZERS = (
    CgroupFreezer("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
    CgroupFreezer("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
)


@dataclass(frozen=True)
class LabCgroups:
    """The control groups of one lab."""

    lab: str

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.lab}"

    def roots(self) -> list[Path]:
        """The lab's group in each hierarchy, wherever an earlier command may have made it."""
        found = []
        for hierarchy in hierarchies():
            if hierarchy.is_only_hierarchy:
                found += [top for top in [hierarchy.base / self.name] if top.exists()]
                continue
            for at, groups, _ in os.walk(hierarchy.mount):
                if self.name in groups:
                    found.append(Path(at) / self.name)
                # What is inside a lab, this one or another, is never another lab of ours.
                groups[:] = [group for group in groups if not group.startswith(PREFIX)]
        return found

    def make(self, leaf: str) -> list[Path]:
        """The groups to join for one part or machine, made where they are missing."""
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
        """The command that starts `argv` inside the lab's group."""
        return join_command(self.make(leaf), argv)

    def pids(self, leaf: str = "") -> set[int]:
        """Every process in the lab, or in one leaf of it."""
        found: set[int] = set()
        for top in self.roots():
            for at, _, _ in os.walk(top / leaf):
                found |= _procs(Path(at))
        return found

    def kill(self, leaf: str = "", *, seconds: float = 10) -> None:
        """End everything in the lab, or in one leaf, at once; and wait until it is gone."""
        end = time.monotonic() + seconds
        while pids := self.pids(leaf) - {os.getpid()}:
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            self._thaw(leaf)  # the dead of a frozen group do not die before it is thawed
            if time.monotonic() > end:
                raise LabError(
                    "process-not-stopped",
                    f"Processes {sorted(pids)} of the lab do not end, even when killed.",
                    "They hang in the kernel, on a device or a file system; look at /proc/PID/stack.",
                )
            time.sleep(0.01)

    @contextlib.contextmanager
    def frozen(self, leaf: str) -> Iterator[None]:
        """Hold everything in a leaf still, as a photograph would."""
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

    def remove(self, leaf: str = "") -> None:
        """Take the groups away; they must be empty of processes by now."""
        for top in self.roots():
            for at, _, _ in os.walk(top / leaf, topdown=False):
                _rmdir(Path(at))


def _make_cgroup(group: Path, hierarchy: CgroupHierarchy) -> None:
    if group.exists():
        return
    try:
        group.mkdir()
    except OSError as error:
        raise HostError(
            "cgroup-failed",
            f"The control group {group} cannot be made: {error.strerror}.",
            "Run the lab as root on the machine itself, or in a container with a writable /sys/fs/cgroup.",
        ) from error
    if "cpuset" in hierarchy.controllers:
        # A new cpuset is empty and lets nobody in until it is told its share.
        for key in ("cpuset.cpus", "cpuset.mems"):
            (group / key).write_text((group.parent / key).read_text())
    if hierarchy.is_only_hierarchy:
        _enable_controllers(group)


def _enable_controllers(group: Path) -> None:
    """Give a new group what its parent has, each controller by itself: some cannot be passed on everywhere."""
    for name in (group.parent / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.subtree_control").write_text(f"+{name}")
    missing = REQUIRED_CONTROLLERS - set((group / "cgroup.controllers").read_text().split())
    if missing:
        group.rmdir()
        raise HostError(
            "cgroup-failed",
            f"The control group {group} lacks the controllers {', '.join(sorted(missing))}.",
            "Run the lab on the machine itself; in a container the top control group must hold no process.",
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


def _rmdir(group: Path) -> None:
    end = time.monotonic() + 5
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # The kernel lets go of a dead process's group a moment after the process.
            if time.monotonic() > end:
                raise LabError(
                    "process-not-stopped",
                    f"The control group {group} cannot be removed: something is still in it.",
                    "Run the same command again.",
                ) from error
            time.sleep(0.01)
        else:
            return
