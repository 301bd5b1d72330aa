"""systemd, the kernel and programs of a running machine."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.errors import MachineError
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import (
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
from aks_flex_node.host.host import CommandResult, UnitState
from aks_flex_node.host.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.host.actions import Action

CGROUPS = Path("/sys/fs/cgroup")
UNIT_PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "NeedDaemonReload",
    "NRestarts",
    "MainPID",
    "Result",
    "InvocationID",
    "ActiveEnterTimestampMonotonic",
)
UNIT_SECONDS = 100.0  # longer than systemd itself waits for a start or a stop


class HostSystem(Protocol):
    live: bool

    def ask(self, *argv: str, seconds: float) -> CommandResult: ...

    def unit(self, name: str) -> UnitState: ...

    def do(self, action: Action) -> None: ...


class LiveSystem:
    """The system that runs here and now."""

    live = True

    def ask(self, *argv: str, seconds: float) -> CommandResult:
        return run(argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return parse_unit(name, self.ask("systemctl", "show", name, "-p", ",".join(UNIT_PROPERTIES), seconds=10).out)

    def do(self, action: Action) -> None:
        match action:
            case SetSysctl(key, value):
                _set_sysctl(key, value)
            case KillGroup(path, seconds):
                kill_group(path, seconds)
            case Unmount(path):
                unmount(path)
            case UnloadModule(name):
                run(["modprobe", "-r", name], seconds=10)  # one that is in use, or built in, stays
            case StartUnit(name) | RestartUnit(name):
                # What went wrong before is over: how often it was restarted is counted anew.
                run(["systemctl", "reset-failed", "--", name], seconds=10)
                _run(action)
            case _:
                _run(action)


COMMANDS = {
    LoadModule: ("modprobe", "--"),
    SwapOff: ("swapoff", "--"),
    EnableUnit: ("systemctl", "enable", "--quiet", "--no-reload", "--"),
    DisableUnit: ("systemctl", "disable", "--quiet", "--no-reload", "--"),
    StopUnit: ("systemctl", "stop", "--"),
}


def command(action: Action) -> tuple[tuple[str, ...], bytes, float]:
    """What to run for an action, what to tell it, and how long it may take."""
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
        case LoadModule(name) | EnableUnit(name) | DisableUnit(name) | StopUnit(name):
            return (*COMMANDS[type(action)], name), b"", UNIT_SECONDS
        case SwapOff(device):
            return (*COMMANDS[SwapOff], device), b"", UNIT_SECONDS
    raise TypeError(f"{action!r} is not done by a program")


def _run(action: Action) -> None:
    argv, text, seconds = command(action)
    answer = run(argv, text=text, seconds=seconds)
    if not answer.ok:
        raise MachineError(
            "action-failed",
            f"Could not {action}: {answer.last_line.rstrip('.')}.",
            f"`{' '.join(argv[:6])}` failed. {_look_at(action)}",
        )


def _look_at(action: Action) -> str:
    if isinstance(action, StartUnit | RestartUnit):
        return f"Look at `journalctl -u {action.name} -n 50`."
    return "Run it by hand to see more, then run the same command again."


def parse_unit(name: str, text: str) -> UnitState:
    """What `systemctl show` says of a unit."""
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitState(
        name,
        exists=properties.get("LoadState") not in {None, "not-found", "masked"},
        enabled=properties.get("UnitFileState") in {"enabled", "enabled-runtime"},
        active=properties.get("ActiveState", "inactive"),
        sub=properties.get("SubState", "dead"),
        needs_reload=properties.get("NeedDaemonReload") == "yes",
        restarts=int(properties.get("NRestarts") or 0),
        pid=int(properties.get("MainPID") or 0),
        result=properties.get("Result", "success"),
        invocation=properties.get("InvocationID", ""),
        started=int(properties.get("ActiveEnterTimestampMonotonic") or 0) / 1e6,
    )


def sysctl_path(key: str) -> str:
    """Dots separate, except inside a name that has slashes already."""
    return "/proc/sys/" + key.replace(".", "/")


def _set_sysctl(key: str, value: str) -> None:
    try:
        Path(sysctl_path(key)).write_text(value + "\n")
    except OSError as error:
        raise MachineError(
            "sysctl-failed",
            f"Could not set {key} to {value}: {error.strerror}.",
            "In a container, its host must allow it. If the key is missing, load the kernel module it belongs to.",
        ) from error


def unmount(path: str) -> None:
    """Unmount all that is mounted at a path; lazily when it is in use, because whoever uses it was told to end."""
    for _ in range(mounts.current_mounts().count(path)):
        if not run(["umount", "--", path], seconds=20).ok:
            run(["umount", "--lazy", "--", path], seconds=20)


def _groups(path: str) -> Iterator[Path]:
    """A control group in every hierarchy that has it: one directory with version 2, several with version 1."""
    roots = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else sorted(CGROUPS.glob("*/"))
    seen: set[Path] = set()
    for root in roots:
        directory = Path(f"{root}/{path.lstrip('/')}")
        # Two names may stand for one hierarchy (cpu and cpu,cpuacct).
        if directory.is_dir() and directory.resolve() not in seen:
            seen.add(directory.resolve())
            yield directory


def _tree(group: Path) -> list[Path]:
    """A group and all below it, the innermost first. Groups come and go meanwhile; one that went does not matter."""
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
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        end = time.monotonic() + patience
        for pid in _pids(groups):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while _pids(groups) and time.monotonic() < end:
            time.sleep(0.02)
    for group in groups:
        for directory in _tree(group):
            with contextlib.suppress(OSError):
                directory.rmdir()
