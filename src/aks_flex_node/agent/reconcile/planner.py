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
    PemFile,
    ProgramTree,
    Resource,
    RuntimePath,
    Service,
    Spec,
    StateFile,
    Symlink,
    Sysctl,
    parent_dirs,
)
from aks_flex_node.host.actions import (
    Action,
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
    SetAside,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    SwapOn,
    UnloadModule,
    WriteFile,
    aside_path,
)
from aks_flex_node.host.disk import backup_path, temporary_path
from aks_flex_node.host.host import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.reconcile.ledger import LedgerRecord
    from aks_flex_node.agent.reconcile.observer import Facts

UNIT_DIRECTORY = "/etc/systemd/system/"
PRIVATE = 0o600


def plan(spec: Spec, facts: Facts) -> Iterator[Action]:
    """Yields the actions that make the machine match the spec; none when it already matches."""
    touched: set[str] = set()
    programs = {one.path for one in spec.programs}
    folders = {one.path for one in spec.resources if isinstance(one, Directory)}
    for resource in spec.resources:
        for action in _plan_one(resource, facts, touched, programs):
            if isinstance(action, MakeDirectory | WriteFile | MakeLink | PlaceTree):
                yield from _make_parents(action.path, facts, folders)
            if isinstance(action, WriteFile | MakeLink | SetAside):
                touched.add(action.path)
            if isinstance(action, PlaceTree) and facts.entries.get(action.path):
                touched.add(action.path)  # the program of a running service is replaced
            yield action
    yield from _secure_parents(spec, facts, folders)
    yield from _leftovers(spec, facts)


def _make_parents(path: str, facts: Facts, made: set[str]) -> Iterator[Action]:
    """Yields parent directories that are not resources of the spec, and are missing or no directories."""
    for folder in parent_dirs(path):
        if folder in made or folder not in facts.entries:
            continue
        entry = facts.entries[folder]
        if entry is None or folder in facts.broken_links or _is_misplaced(folder, facts, EntryKind.FILE):
            made.add(folder)
            yield from _set_aside_misplaced(folder, facts, EntryKind.FILE)
            yield MakeDirectory(folder)


def _secure_parents(spec: Spec, facts: Facts, made: set[str]) -> Iterator[Action]:
    """Yields parent directories that the agent created and others than root can write to: they could replace what is
    in them.
    """
    for folder in sorted(spec.parent_dirs - made):
        entry, record = facts.entries.get(folder), facts.owned.paths.get(folder, {})
        if record.get("kind") != "directory" or record.get("original") is not None or entry is None:
            continue
        if entry.kind is EntryKind.DIRECTORY and (not entry.roots or entry.mode & 0o022):
            yield MakeDirectory(folder)


def _is_misplaced(path: str, facts: Facts, kind: EntryKind) -> bool:
    """Returns whether an owned path has become an entry of a kind that it did not have before the agent."""
    entry, record = facts.entries.get(path), facts.owned.paths.get(path)
    if entry is None or entry.kind is not kind or record is None or "kind" not in record:
        return False
    return (record.get("original") or {}).get("kind") != kind.value


def _set_aside_misplaced(path: str, facts: Facts, kind: EntryKind) -> Iterator[Action]:
    """Yields the rename of a file or a directory that stands where the agent has created another kind of entry."""
    if _is_misplaced(path, facts, kind):
        yield SetAside(path)


def _plan_one(resource: Resource, facts: Facts, touched: set[str], programs: set[str]) -> Iterator[Action]:
    match resource:
        case Directory() | File() | Symlink() | ProgramTree():
            yield from _plan_path(resource, facts)
        case RuntimePath(is_directory=True):
            yield from _plan_runtime_directory(resource, facts)
        case FileLine():
            yield from _plan_line(resource, facts)
        case PemFile(path):
            if facts.damage.get(path):
                yield SetAside(path)
        case StateFile(path):
            if (entry := facts.entries[path]) and entry.kind is EntryKind.DIRECTORY:
                yield SetAside(path)
        case Service():
            yield from _plan_service(resource, facts, touched, programs)
        case Sysctl() | KernelModule() | NoSwap() if facts.live:
            yield from _plan_kernel(resource, facts)


def _plan_path(resource: Directory | File | Symlink | ProgramTree, facts: Facts) -> Iterator[Action]:
    match resource:
        case Directory(path, mode):
            entry = facts.entries[path]
            # A link to a directory is the administrator's choice. With any other link, the action fails.
            same = entry and entry.roots and (entry.kind, entry.mode) == (EntryKind.DIRECTORY, mode)
            is_link = entry is not None and entry.kind is EntryKind.LINK and path not in facts.broken_links
            if not same and not is_link:
                yield from _set_aside_misplaced(path, facts, EntryKind.FILE)
                yield MakeDirectory(path, mode)
        case File(path, content, mode, secret):
            entry = facts.entries[path]
            same = entry and entry.kind is EntryKind.FILE and entry.mode == mode and entry.roots
            if not same or facts.contents[path] != content:
                yield from _set_aside_misplaced(path, facts, EntryKind.DIRECTORY)
                yield WriteFile(path, content, mode, secret)
        case Symlink(path, target):
            entry = facts.entries[path]
            if entry is None or entry.target != target:
                yield from _set_aside_misplaced(path, facts, EntryKind.DIRECTORY)
                yield MakeLink(path, target)
        case ProgramTree(path):
            if facts.damage[path]:
                yield PlaceTree(resource.staging_path, path)
            elif path in facts.unfinished:
                yield RemoveTree(str(backup_path(Path(path))))


def _plan_runtime_directory(resource: RuntimePath, facts: Facts) -> Iterator[Action]:
    """Yields the directory where a file or a broken link stands. With a link, the action fails and names it."""
    path, entry = resource.path, facts.entries[resource.path]
    if path in facts.broken_links or (entry and entry.kind is EntryKind.FILE):
        yield from _set_aside_misplaced(path, facts, EntryKind.FILE)
        yield MakeDirectory(path)


def _plan_line(line: FileLine, facts: Facts) -> Iterator[Action]:
    content, entry = facts.contents[line.path], facts.entries[line.path]
    if entry is None:
        return
    if content is None:  # a directory, or a link to nothing
        yield SetAside(line.path)
        return
    if not line.is_in(content):  # damaged; the other program creates it again if it is missing
        yield SetAside(line.path)
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


def _plan_service(service: Service, facts: Facts, touched: set[str], programs: set[str]) -> Iterator[Action]:
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
    elif (
        fresh
        or touched & programs
        or started_with != service.fingerprint
        or service.name in facts.replaced
        or (service.name in facts.unhealthy and service.name not in facts.blocked)
    ):
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
    yield from _clear_damage(path, record, facts)
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


def _clear_damage(path: str, record: LedgerRecord, facts: Facts) -> Iterator[Action]:
    """Yields the removal of what was set aside, and of a directory in place of a file, unless it is not empty: the
    agent did not create what is in it.
    """
    if path in facts.asides:
        yield Remove(aside_path(path))
    if record.get("kind") in {"file", "link"} and _is_misplaced(path, facts, EntryKind.DIRECTORY):
        yield Remove(path)
        yield SetAside(path)


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
