"""Detects drift: compares a snapshot of the machine with its configuration and describes each difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.reconcile.engine import ComponentPlan, Engine, distinct_actions
from aks_flex_node.agent.reconcile.resources import Service
from aks_flex_node.host.actions import (
    Action,
    DisableUnit,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    SetAside,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    WriteFile,
)
from aks_flex_node.host.host import CommandResult, EntryKind, FileEntry, Host, UnitState
from aks_flex_node.host.system import read_units
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.observer import Facts


DEV_NULL = "/dev/null"


DESCRIPTIONS: dict[type[Action], str] = {
    Remove: "should not exist",
    RemoveTree: "should not exist",
    LoadModule: "is not loaded",
    SwapOff: "is in use as swap",
    EnableUnit: "is disabled",
    StopUnit: "should not exist",
    DisableUnit: "should not exist",
    ReloadUnits: "has not loaded the current unit files",
}


def describe(action: Action, facts: Facts) -> str:
    """Describes how the subject of an action differs from the desired state."""
    text = DESCRIPTIONS.get(type(action), "")
    match action:
        case WriteFile(path, content, mode):
            text = _describe_file(facts.entries.get(path), mode, same=facts.contents.get(path) == content)
        case MakeDirectory(path, mode):
            text = _describe_entry(facts.entries.get(path), mode) or "is not a directory"
        case MakeLink(path, target):
            text = f"does not point to {target}" if facts.entries.get(path) else "is missing"
        case PlaceTree(_, path) | SetAside(path):
            text = _describe_damage(facts, path)
        case SetSysctl(key, value):
            text = f"is {facts.sysctls.get(key)} instead of {value}"
        case StartUnit(name):
            text = f"is {facts.units[name].active}"
        case RestartUnit(name):
            other = "runs a replaced program" if name in facts.replaced else "runs with outdated settings"
            text = facts.unhealthy.get(name, other)
    return text or f"differs: {action}"


def _describe_damage(facts: Facts, path: str) -> str:
    entry = facts.entries.get(path)
    if facts.damage.get(path):
        return f"is damaged: {facts.damage[path]}"
    if entry and entry.kind is EntryKind.DIRECTORY:
        return "is a directory instead of a file"
    return "is damaged: a required line is missing" if path in facts.contents else "is not a directory"


def _describe_file(entry: FileEntry | None, mode: int, *, same: bool) -> str:
    if entry and entry.kind is EntryKind.LINK:
        return "is masked" if entry.target == DEV_NULL else f"is a link to {entry.target}"
    if entry and entry.kind is not EntryKind.FILE:
        return "is not a file"
    wrong = _describe_entry(entry, mode)
    return ", ".join(one for one in (wrong, "" if same or entry is None else "has different content") if one)


def _describe_entry(entry: FileEntry | None, mode: int) -> str:
    if entry is None:
        return "is missing"
    wrong = [] if entry.mode == mode else [f"has mode {entry.mode:04o} instead of {mode:04o}"]
    return ", ".join([*wrong, *([] if entry.roots else ["is not owned by root"])])


class HostSnapshot:
    """A read-only view of a host that caches files and units, so that one comparison sees a consistent state."""

    def __init__(self, host: Host, units: Iterable[str] = ()) -> None:
        self._host = host
        self._units = read_units(host, units)
        self._entries: dict[str, FileEntry | None] = {}
        self._contents: dict[str, bytes | None] = {}

    @property
    def live(self) -> bool:
        return self._host.live

    def read(self, path: str) -> bytes | None:
        if path not in self._contents:
            self._contents[path] = self._host.read(path)
        return self._contents[path]

    def digest(self, path: str) -> str:
        return self._host.digest(path)

    def stat(self, path: str) -> FileEntry | None:
        if path not in self._entries:
            self._entries[path] = self._host.stat(path)
        return self._entries[path]

    def list_dir(self, path: str) -> tuple[str, ...]:
        return self._host.list_dir(path)

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        return self._host.query(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return self._units.get(name) or self._host.unit(name)

    def apply(self, action: Action) -> None:
        raise AssertionError(f"{action}: a snapshot is read-only")


MAX_DIFF_LINES = 40
MAX_DIFF_WIDTH = 200
UNIT_DIRS = ("/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system")


@frozen
class Drift:
    component: str
    subject: str  # a path, a unit or a kernel setting
    description: str  # a sentence about the subject
    diff: str = ""  # of text files: desired against observed content
    foreign: bool = False  # a repair does not change it: the agent did not create it, or a repair would not help
    fault: bool = False  # a service or a file that does not work, although no other program has changed it
    damage: bool = False  # of a program: damaged files, or a link to another version
    blocked: bool = False  # a repair is impossible until its cause is gone, for example until there is space


def detect_drift(engine: Engine, components: Sequence[Component] = ALL) -> tuple[Drift, ...]:
    """Returns everything that a repair would change, and foreign drop-ins of the agent's units. Read-only."""
    specs = [component.desired(engine.config, engine.machine) for component in components]
    names = [one.name for spec in specs for one in spec.resources if isinstance(one, Service)]
    snapshot = HostSnapshot(engine.host, names)
    observer = replace(engine, host=snapshot)
    plans = [observer.plan(component) for component in components]
    own = [
        Drift(
            "systemd" if isinstance(action, ReloadUnits) else plan.component,
            *_describe_action(plan, action, snapshot),
            damage=isinstance(action, (PlaceTree, MakeLink)),
            fault=isinstance(action, SetAside) or action.subject in plan.facts.unhealthy,
        )
        for plan, action in distinct_actions(plans)
        if _is_own_drift(plan, action, engine.ignored_paths)
    ]
    blocked = [
        Drift(plan.component, name, why, foreign=True, blocked=True)
        for plan in plans
        for name, why in blocked_services(plan)
    ]
    return tuple(dict.fromkeys((*own, *blocked, *_foreign_dropins(engine, plans, snapshot))))


def blocked_services(plan: ComponentPlan) -> Iterator[tuple[str, str]]:
    """Yields services that do not work and that a restart would not repair, and why: for example a full disk."""
    for name, why in plan.facts.blocked.items():
        yield name, f"{name} {plan.facts.unhealthy[name]}, because {why}"


def _describe_action(plan: ComponentPlan, action: Action, host: Host) -> tuple[str, str, str]:
    subject = action.subject or "systemd"
    return subject, f"{subject} {describe(action, plan.facts)}", _diff(action, host)


def _is_own_drift(plan: ComponentPlan, action: Action, ignored: frozenset[str]) -> bool:
    """Returns False for actions that only follow from other drift: reloads, restarts, parent directories."""
    others = [one for one in plan.actions if not isinstance(one, ReloadUnits | RestartUnit)]
    if isinstance(action, ReloadUnits):
        return not others
    if isinstance(action, RestartUnit):
        inputs = {path for one in plan.spec.resources if isinstance(one, Service) for path in one.inputs}
        return not inputs & (ignored | {one.subject for one in others})
    # A directory may be created only for something in it.
    return not (
        isinstance(action, MakeDirectory)
        and action.path not in plan.spec.paths
        and plan.facts.entries.get(action.path) is None
    )


def _diff(action: Action, host: Host) -> str:
    """Returns the diff of a text file; empty for secret or binary files."""
    import difflib

    if not isinstance(action, WriteFile) or action.secret:
        return ""
    try:
        observed, desired = (host.read(action.path) or b"").decode(), action.content.decode()
    except UnicodeDecodeError:
        return ""
    lines = list(
        difflib.unified_diff(desired.splitlines(), observed.splitlines(), "desired", "observed", "", "", 1, "")
    )
    shown = [line[:MAX_DIFF_WIDTH] for line in lines[:MAX_DIFF_LINES]]
    return "\n".join([*shown, *(["…"] if len(lines) > MAX_DIFF_LINES else [])])


def _foreign_dropins(engine: Engine, plans: Sequence[ComponentPlan], host: Host) -> Iterator[Drift]:
    """Yields drop-ins of the agent's units that the agent did not write."""
    ours = {path for plan in plans for path in plan.spec.paths}
    for plan in plans:
        for unit in (one.name for one in plan.spec.resources if isinstance(one, Service)):
            for folder in (f"{directory}/{unit}.d" for directory in UNIT_DIRS):
                paths = [f"{folder}/{name}" for name in host.list_dir(folder) if name.endswith(".conf")]
                for path in (one for one in paths if one not in ours and one not in engine.ignored_paths):
                    yield Drift(
                        plan.component,
                        path,
                        f"{path} changes {unit} and is not managed by aks-flex-node",
                        foreign=True,
                    )
