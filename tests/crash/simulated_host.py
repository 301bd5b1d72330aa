"""Simulates systemd and a kernel as files below a root, so that they survive a crash of the agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import MachineError
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
from aks_flex_node.host.disk import HostDisk
from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult, UnitState
from aks_flex_node.host.system import sysctl_path
from tests.crash import action_trace, tables

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.host.actions import Action

STATE = ".simulated.json"  # what a real machine keeps in memory
UNITS = "/etc/systemd/system"
BRIDGE_KEYS = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")


class SimulatedSystem:
    live = True

    def __init__(self, root: Path) -> None:
        self._disk = HostDisk(root)
        self._file = root / STATE

    def ask(self, *argv: str, seconds: float) -> CommandResult:  # noqa: ARG002
        match argv:
            case ("ip", "-j", "link", *_):
                return CommandResult(0, json.dumps([{"ifname": name} for name in self._memory()["links"]]))
            case ("iptables-save",):
                return CommandResult(0, self._memory()["iptables"])
            case ("see-node",):
                return CommandResult(0, json.dumps(self._memory().get("node")))
        return CommandResult(MISSING_PROGRAM, err=f"{argv[0]}: not simulated")

    def unit(self, name: str) -> UnitState:
        running = self._memory()["units"].get(name)
        exists = self._disk.look(f"{UNITS}/{name}") is not None or running is not None
        enabled = self._wanted(name).is_symlink()
        if running is None:
            return UnitState(name, exists=exists, enabled=enabled)
        stale = running["definition"] != self._definition(name)
        return UnitState(name, exists, enabled, "active", needs_reload=stale)

    def do(self, action: Action) -> None:
        match action:
            case EnableUnit() | DisableUnit() | StartUnit() | RestartUnit() | StopUnit() | ReloadUnits():
                self._do_to_unit(action)
            case SetSysctl() | LoadModule() | UnloadModule() | SwapOff() | SwapOn() | Unmount() | KillGroup():
                self._do_to_kernel(action)
            case Run(argv, _, text):
                self._run(argv, text.decode())

    def _do_to_unit(self, action: Action) -> None:
        match action:
            case EnableUnit(name):
                self._wanted(name).parent.mkdir(exist_ok=True)
                if not self._wanted(name).is_symlink():
                    self._wanted(name).symlink_to(f"{UNITS}/{name}")
            case DisableUnit(name):
                self._wanted(name).unlink(missing_ok=True)
            case StartUnit(name) if self._memory()["units"].get(name):
                pass
            case StartUnit(name) | RestartUnit(name):
                self._start(name)
            case StopUnit(name):
                self._remember("units", {one: unit for one, unit in self._memory()["units"].items() if one != name})
            case ReloadUnits():
                units = self._memory()["units"]
                known = {name: {**unit, "definition": self._definition(name)} for name, unit in units.items()}
                self._remember("units", known)

    def _start(self, name: str) -> None:
        """Starts a unit with the loaded definition, which is outdated until a reload."""
        if self._disk.look(f"{UNITS}/{name}") is None:
            raise MachineError("action-failed", f"Could not start {name}: there is no such unit.", "")
        units = self._memory()["units"]
        definition = units.get(name, {}).get("definition") or self._definition(name)
        held = {path: self._disk.digest(path) for path in action_trace.INPUTS.get(name, ())}
        self._remember("units", {**units, name: {"definition": definition, "by": definition, "held": held}})
        left = action_trace.LEFT_BY.get(name, action_trace.Traces())
        left.put(self._disk)
        memory = self._memory()
        self._remember("links", sorted({*memory["links"], *left.links}))
        self._remember("iptables", left.iptables or memory["iptables"])
        self._remember("units", {**memory["units"], **{slice_: {"definition": ""} for slice_ in left.slices}})

    def _do_to_kernel(self, action: Action) -> None:
        match action:
            case SetSysctl(key, value):
                self._set(key, value)
            case LoadModule(name):
                tables.add(self._disk, "/proc/modules", f"{name} 1 0 - Live 0x0")
                if name == "br_netfilter":
                    self._offer_bridge_keys()
            case UnloadModule(name):
                tables.drop(self._disk, "/proc/modules", 0, name)
                if name == "br_netfilter":
                    action_trace.clear(self._disk, "/proc/sys/net/bridge")
            case SwapOff(device):
                tables.drop(self._disk, "/proc/swaps", 0, device)
            case SwapOn(device, priority):
                tables.add(self._disk, "/proc/swaps", f"{device} partition 1024 0 {priority}")
            case Unmount(path):
                tables.drop(self._disk, "/proc/self/mountinfo", 4, path)
            case KillGroup(path):
                action_trace.clear(self._disk, f"/sys/fs/cgroup{path}")

    def _set(self, key: str, value: str) -> None:
        if self._disk.look(sysctl_path(key)) is None:
            raise MachineError("sysctl-failed", f"Could not set {key}: there is no such key.", "")
        self._disk.at(sysctl_path(key)).write_text(f"{value}\n")

    def _offer_bridge_keys(self) -> None:
        place = self._disk.at("/proc/sys/net/bridge")
        place.mkdir(exist_ok=True)
        for key in BRIDGE_KEYS:
            (place / key).write_text("0\n")

    def _run(self, argv: tuple[str, ...], text: str) -> None:
        match argv:
            case ("ip", "link", "delete", name):
                self._remember("links", [one for one in self._memory()["links"] if one != name])
            case ("iptables-restore", "--noflush"):
                self._remember("iptables", tables.restored(self._memory()["iptables"], text))
            case ("change-node",):  # not on this machine, but survives a kill
                self._remember("node", json.loads(text))
            case _:
                raise MachineError("action-failed", f"{argv[0]} is not simulated.", "")

    def _definition(self, name: str) -> str:
        """Returns what systemd reads of a unit: its file and its drop-ins."""
        names = [one for one in self._disk.names(f"{UNITS}/{name}.d") if one.endswith(".conf")]
        dropped = [f"{UNITS}/{name}.d/{one}" for one in names]
        return " ".join(self._disk.digest(path) for path in (f"{UNITS}/{name}", *dropped))

    def _wanted(self, name: str) -> Path:
        return self._disk.at(f"{UNITS}/multi-user.target.wants") / name

    def _memory(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return {"units": {}, "links": [], "iptables": "", **known}

    def _remember(self, what: str, value: object) -> None:
        self._file.write_text(json.dumps({**self._memory(), what: value}, indent=1, sort_keys=True))
