"""Plans the actions from the observed to the desired state. Pure: the same facts give the same plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    FileLine,
    KernelModule,
    NoSwap,
    ProgramTree,
    Service,
    Spec,
    Symlink,
    Sysctl,
    parent_dirs,
)
from aks_flex_node.host.actions import (
    DisableUnit,
    EditFile,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    SwapOn,
    UnloadModule,
    WriteFile,
)
from aks_flex_node.host.disk import backup_path, temporary_path
from aks_flex_node.host.host import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.reconcile.ledger import LedgerRecord
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.agent.reconcile.resources import Resource
    from aks_flex_node.host.actions import Action

UNIT_DIRECTORY = "/etc/systemd/system/"
PRIVATE = 0o600


def plan(spec: Spec, facts: Facts) -> Iterator[Action]:
    """Yields the actions that make the machine match the spec; none when it already matches."""
    touched: set[str] = set()
    folders = {one.path for one in spec.resources if isinstance(one, Directory)}
    for resource in spec.resources:
        for action in _plan_one(resource, facts, touched):
            if isinstance(action, MakeDirectory | WriteFile | MakeLink | PlaceTree):
                yield from _make_parents(action.path, facts, folders)
            if isinstance(action, WriteFile | MakeLink):
                touched.add(action.path)
            yield action
    yield from _leftovers(spec, facts)


def _make_parents(path: str, facts: Facts, made: set[str]) -> Iterator[Action]:
    """Yields missing parent directories that are not resources of the spec."""
    for folder in parent_dirs(path):
        if folder not in made and folder in facts.entries and facts.entries[folder] is None:
            made.add(folder)
            yield MakeDirectory(folder)


def _plan_one(resource: Resource, facts: Facts, touched: set[str]) -> Iterator[Action]:
    match resource:
        case Directory() | File() | Symlink() | ProgramTree():
            yield from _plan_path(resource, facts)
        case FileLine():
            yield from _plan_line(resource, facts)
        case Service():
            yield from _plan_service(resource, facts, touched)
        case Sysctl() | KernelModule() | NoSwap() if facts.live:
            yield from _plan_kernel(resource, facts)


def _plan_path(resource: Directory | File | Symlink | ProgramTree, facts: Facts) -> Iterator[Action]:
    match resource:
        case Directory(path, mode):
            entry = facts.entries[path]
            # A link to a directory is the administrator's choice. Any other entry makes the action fail.
            same = entry and entry.roots and (entry.kind, entry.mode) == (EntryKind.DIRECTORY, mode)
            if entry is None or (entry.kind is not EntryKind.LINK and not same):
                yield MakeDirectory(path, mode)
        case File(path, content, mode, secret):
            entry = facts.entries[path]
            same = entry and entry.kind is EntryKind.FILE and entry.mode == mode and entry.roots
            if not same or facts.contents[path] != content:
                yield WriteFile(path, content, mode, secret)
        case Symlink(path, target):
            entry = facts.entries[path]
            if entry is None or entry.target != target:
                yield MakeLink(path, target)
        case ProgramTree(path):
            if facts.damage[path]:
                yield PlaceTree(resource.staging_path, path)
            elif path in facts.unfinished:
                yield RemoveTree(str(backup_path(Path(path))))


def _plan_line(line: FileLine, facts: Facts) -> Iterator[Action]:
    content, entry = facts.contents[line.path], facts.entries[line.path]
    if content is None or entry is None:
        return
    # The file contains credentials, so only root may read it.
    loose = entry.kind is EntryKind.FILE and not (entry.roots and entry.mode == PRIVATE)
    if loose or line.set(content) != content:
        yield EditFile(line.path, line.set(content), PRIVATE, secret=True)


def _plan_kernel(resource: Sysctl | KernelModule | NoSwap, facts: Facts) -> Iterator[Action]:
    match resource:
        case Sysctl(key, value):
            if facts.sysctls[key] != value:
                yield SetSysctl(key, value)
        case KernelModule(name):
            if name not in facts.modules:
                yield LoadModule(name)
        case NoSwap():
            yield from (SwapOff(device) for device in facts.swaps)


def _plan_service(service: Service, facts: Facts, touched: set[str]) -> Iterator[Action]:
    unit = facts.units[service.name]
    fresh = touched & set(service.inputs)
    # systemd may still have an old version of an inactive or removed unit in memory.
    remembered = unit.exists or unit.active != "inactive" or any(facts.entries.get(path) for path in fresh)
    if unit.needs_reload or (remembered and any(path.startswith(UNIT_DIRECTORY) for path in fresh)):
        yield ReloadUnits()
    if not unit.enabled:
        yield EnableUnit(service.name)
        if unit.exists:
            yield ReloadUnits()  # otherwise systemd continues to report the unit as disabled
    if not facts.live or (service.needs and facts.entries.get(service.needs) is None):
        return
    started_with = facts.owned.services.get(service.name, {}).get("started_with")
    if not unit.running:
        yield StartUnit(service.name, service.wait)
    elif fresh or started_with != service.fingerprint or service.name in facts.replaced:
        yield RestartUnit(service.name, service.wait)


def _leftovers(spec: Spec, facts: Facts) -> Iterator[Action]:
    """Yields the removal of resources of an earlier configuration that the spec does not contain."""
    desired, services = spec.paths | spec.parent_dirs, spec.fingerprints
    for name in facts.owned.services:
        if name not in services:
            yield from stop_service(name, facts)
    for path, record in reversed(facts.owned.paths.items()):
        # Older versions are kept for a rollback until `artifacts clean --old` removes them.
        if path not in desired and record.get("kind") != "program" and path in facts.entries:
            yield from restore_path(path, record, facts)


def removal(facts: Facts) -> Iterator[Action]:
    """Yields the actions that remove everything a component owns and restore the originals."""
    for name in facts.owned.services:
        yield from stop_service(name, facts)
    for path, record in reversed(facts.owned.paths.items()):
        yield from restore_path(path, record, facts)
    for key, record in facts.owned.sysctls.items():
        if facts.live and record.get("original") is not None and facts.sysctls.get(key) != record["original"]:
            yield SetSysctl(key, record["original"])
    for name in facts.owned.modules:
        yield UnloadModule(name)
    for device, record in facts.owned.swaps.items():
        if device not in facts.swaps:
            yield SwapOn(device, record.get("priority", -2))


def stop_service(name: str, facts: Facts) -> Iterator[Action]:
    unit = facts.units[name]
    if unit.running or unit.active == "failed":
        yield StopUnit(name)
    if unit.enabled:
        yield DisableUnit(name)


def restore_path(path: str, record: LedgerRecord, facts: Facts) -> Iterator[Action]:
    """Yields the action that removes an owned path or restores its original."""
    entry, original = facts.entries.get(path), record.get("original")
    if record.get("edited"):
        if path in facts.unfinished:
            yield Remove(str(temporary_path(Path(path))))
    elif record.get("ours") or record.get("kind") == "program":
        yield from _remove_owned_dir(path, original, facts)
    elif original is None or (original["kind"] == "file" and path not in facts.originals):
        if entry is not None or path in facts.unfinished:
            yield Remove(path)
    elif original["kind"] == "link":
        yield MakeLink(path, original["target"])
    elif original["kind"] == "file":
        yield WriteFile(path, facts.originals[path], original["mode"])
    elif original["kind"] == "directory" and entry is not None and entry.mode != original["mode"]:
        yield MakeDirectory(path, original["mode"])


def _remove_owned_dir(path: str, original: LedgerRecord | None, facts: Facts) -> Iterator[Action]:
    """Yields the removal of an owned directory with all content that was not there before the agent."""
    entry = facts.entries.get(path)
    if original is None or "names" not in original:
        if entry is not None:
            yield RemoveTree(path)
        return
    for name in facts.children.get(path, ()):
        if name not in original["names"]:
            yield RemoveTree(f"{path}/{name}")
    if original["kind"] == "link":
        if entry is None or entry.target != original["target"]:
            yield MakeLink(path, original["target"])
    elif entry is not None and entry.mode != original["mode"]:
        yield MakeDirectory(path, original["mode"])
