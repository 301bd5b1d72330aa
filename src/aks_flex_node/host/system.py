"""systemd, the kernel and the programs of a running machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.errors import MachineError
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import (
    Action,
    DisableUnit,
    EnableUnit,
    KillGroup,
    LoadModule,
    ReloadUnits,
    RestartUnit,
    Run,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    SwapOn,
    UnloadModule,
    Unmount,
)
from aks_flex_node.host.host import CommandResult, Host, UnitState
from aks_flex_node.host.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


CGROUPS = Path("/sys/fs/cgroup")
UNIT_PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "NeedDaemonReload",
    "NRestarts",
    "MainPID",
    "InvocationID",
    "ActiveEnterTimestampMonotonic",
)
UNIT_SECONDS = 100.0  # longer than systemd's timeout for a start or a stop


class HostSystem(Protocol):
    live: bool

    def ask(self, *argv: str, seconds: float) -> CommandResult: ...

    def unit(self, name: str) -> UnitState: ...

    def do(self, action: Action) -> None: ...


class LiveSystem:
    """The running system of this machine."""

    live = True

    def ask(self, *argv: str, seconds: float) -> CommandResult:
        return run(argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return parse_unit(name, self.ask("systemctl", "show", name, "-p", ",".join(UNIT_PROPERTIES), seconds=10).out)

    def do(self, action: Action) -> None:
        match action:
            case SetSysctl(key, value):
                try:
                    Path(sysctl_path(key)).write_text(value + "\n")
                except OSError as error:
                    raise MachineError(
                        "sysctl-failed",
                        f"Could not set {key} to {value}: {error.strerror}.",
                        "In a container, the host must allow it. If the key is missing, load its kernel module.",
                    ) from error
            case KillGroup(path, seconds):
                kill_group(path, seconds)
            case Unmount(path):
                unmount(path)
            case UnloadModule(name):
                run(["modprobe", "-r", name], seconds=10)  # a module that is in use or built in is not removed
            case StartUnit(name) | RestartUnit(name):
                # Resets the restart count of earlier failures.
                run(["systemctl", "reset-failed", "--", name], seconds=10)
                _run(action)
            case _:
                _run(action)


COMMANDS: dict[type[Action], tuple[str, ...]] = {  # of an action on its subject
    LoadModule: ("modprobe", "--"),
    SwapOff: ("swapoff", "--"),
    EnableUnit: ("systemctl", "enable", "--quiet", "--no-reload", "--"),
    DisableUnit: ("systemctl", "disable", "--quiet", "--no-reload", "--"),
    StopUnit: ("systemctl", "stop", "--"),
}


def command(action: Action) -> tuple[tuple[str, ...], bytes, float]:
    """Returns the command of an action, its input, and its time limit."""
    if prefix := COMMANDS.get(type(action)):
        return (*prefix, action.subject), b"", UNIT_SECONDS
    match action:
        case Run(argv, _, text, seconds):
            return argv, text, seconds
        case ReloadUnits():
            return ("systemctl", "daemon-reload"), b"", UNIT_SECONDS
        case StartUnit(name, wait) | RestartUnit(name, wait):
            verb = "start" if isinstance(action, StartUnit) else "restart"
            return ("systemctl", verb, *(() if wait else ("--no-block",)), "--", name), b"", UNIT_SECONDS
        case SwapOn(device, priority):
            options = ("--priority", str(priority)) if priority >= 0 else ()
            return ("swapon", *options, "--", device), b"", UNIT_SECONDS
    raise TypeError(f"{action!r} has no command")


# systemd itself ended, as in a shutdown: nothing is known about the unit.
SYSTEMD_LOST = ("Connection reset by peer", "Failed to connect to bus", "Transport endpoint is not connected")


def _run(action: Action) -> None:
    argv, text, seconds = command(action)
    result = run(argv, text=text, seconds=seconds)
    if not result.ok:
        raise MachineError(
            "action-failed",
            f"Could not {action}: {result.last_line.rstrip('.')}.",
            f"`{' '.join(argv[:6])}` failed. {_next_step(action)}",
            retryable=any(text in result.last_line for text in SYSTEMD_LOST),
        )


def _next_step(action: Action) -> str:
    if isinstance(action, StartUnit | RestartUnit):
        return f"Check `journalctl -u {action.name} -n 50`."
    return "Run it manually to see the error, then run the same command again."


def parse_unit(name: str, text: str) -> UnitState:
    """Parses the output of `systemctl show`."""
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitState(
        name,
        exists=properties.get("LoadState") not in {None, "not-found", "masked"},
        enabled=properties.get("UnitFileState") in {"enabled", "enabled-runtime"},
        active=properties.get("ActiveState", "inactive"),
        needs_reload=properties.get("NeedDaemonReload") == "yes",
        restarts=int(properties.get("NRestarts") or 0),
        pid=int(properties.get("MainPID") or 0),
        invocation=properties.get("InvocationID", ""),
        started=int(properties.get("ActiveEnterTimestampMonotonic") or 0) / 1e6,
    )


def read_units(host: Host, names: Iterable[str]) -> dict[str, UnitState]:
    """Reads several units with one `systemctl show`; omits units without output."""
    units = sorted(set(names))
    if not units or not host.live:
        return {}
    return parse_units(host.query("systemctl", "show", *units, "-p", ",".join(("Id", *UNIT_PROPERTIES))).out)


def parse_units(text: str) -> dict[str, UnitState]:
    """Parses the output of `systemctl show` for several units: blocks separated by empty lines."""
    names = ((re.search("^Id=(.+)$", block, re.MULTILINE), block) for block in text.split("\n\n"))
    return {name[1]: parse_unit(name[1], block) for name, block in names if name}


# systemd links the ID of the current invocation of a unit here, and removes the link when the unit stops or fails.
INVOCATION_LINK = "/run/systemd/units/invocation:"
SETTLED_STATES = frozenset(("active", "inactive", "failed"))  # which only a new invocation or its end changes
MAX_AGE_SECONDS = 300.0  # `enabled` may change without an invocation


class UnitCache:
    """The states of some units. A program that observes them for years starts a process only after a change."""

    def __init__(self, host: Host, names: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._host, self._names, self._clock = host, tuple(names), clock
        self._units: dict[str, UnitState] = {}
        self._due = 0.0

    def unit(self, name: str) -> UnitState:
        """Returns the state of a unit."""
        if self._clock() >= self._due or not all(map(self._is_unchanged, self._units.values())):
            self._units = read_units(self._host, self._names)
            self._due = self._clock() + MAX_AGE_SECONDS
        return self._units.get(name) or self._host.unit(name)

    def _is_unchanged(self, unit: UnitState) -> bool:
        link = self._host.stat(f"{INVOCATION_LINK}{unit.name}")
        invocation = unit.invocation if unit.active == "active" else ""
        return unit.active in SETTLED_STATES and (link.target if link else "") == invocation


def parse_swaps(text: str) -> dict[str, int]:
    """Parses the active swap devices and files from /proc/swaps, with their priorities: negative if the kernel chose
    it.
    """
    rows = (line.split() for line in text.splitlines()[1:] if line.strip())
    return {row[0].replace("\\040", " "): int(row[-1]) for row in rows}


def parse_memory_total(meminfo: str) -> int | None:
    """Parses the total memory in bytes from /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def sysctl_path(key: str) -> str:
    """Returns the /proc path of a sysctl key. A key with slashes may have dots inside of a name."""
    return "/proc/sys/" + key.replace(".", "/")


def unmount(path: str) -> None:
    """Unmounts everything at and below a path. Unmounts lazily if it is in use, because its users are already being
    stopped.

    A mount can share its mounts below with another one, for example a bind mount of a directory of the host: an
    unmount in one then unmounts in both. So they are separated first.
    """
    for _ in range(mounts.current_mounts().count(path)):
        separated = run(["mount", "--make-rprivate", "--", path], seconds=20)
        if not separated.ok and path in mounts.current_mounts():
            raise MachineError(
                "action-failed",
                f"Could not separate the mount {path} from others: {separated.last_line.rstrip('.')}.",
                f"It was not unmounted. Check `findmnt --output TARGET,PROPAGATION {path}`.",
            )
        if not run(["umount", "--recursive", "--", path], seconds=20).ok:
            run(["umount", "--lazy", "--", path], seconds=20)


def _groups(path: str) -> Iterator[Path]:
    """Yields the directories of a control group: one with cgroup v2, several with cgroup v1."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else sorted(CGROUPS.glob("*/"))
    seen: set[Path] = set()
    for root in roots:
        directory = Path(f"{root}/{path.lstrip('/')}")
        # Two names can refer to the same hierarchy (cpu and cpu,cpuacct).
        if directory.is_dir() and directory.resolve() not in seen:
            seen.add(directory.resolve())
            yield directory


def _tree(group: Path) -> list[Path]:
    """Returns a group and its descendants, innermost first. Groups that disappear in the meantime are ignored."""
    return [Path(folder) for folder, _, _ in os.walk(group, topdown=False, onerror=None)]


def _pids(groups: list[Path]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        for directory in _tree(group):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in (directory / "cgroup.procs").read_text().split()}
    return found - {0, os.getpid()}


def kill_group(path: str, seconds: float) -> None:
    groups = list(_groups(path))
    for number, grace_seconds in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        end = time.monotonic() + grace_seconds
        for pid in _pids(groups):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while _pids(groups) and time.monotonic() < end:
            time.sleep(0.02)
    for group in groups:
        for directory in _tree(group):
            with contextlib.suppress(OSError):
                directory.rmdir()
