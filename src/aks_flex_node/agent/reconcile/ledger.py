"""The ledger: records what the agent owns on this machine and what was there before, so that unbootstrap can restore
the machine.

Written before and after the actions of a component, in two copies. A copy with an invalid structure counts as
damaged, because unbootstrap removes files as root by it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from aks_flex_node.agent.reconcile.resources import Spec, is_marked
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import (
    Action,
    EditFile,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
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
from aks_flex_node.host.disk import temporary_path
from aks_flex_node.host.host import EntryKind, FileEntry, Host, read_text
from aks_flex_node.host.system import parse_swaps, sysctl_path
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


# The keys required to restore an original, by its kind.
REQUIRED_KEYS = {"file": ("mode", "copy"), "directory": ("mode", "names"), "link": ("target", "names")}


class OriginalKind(TypedDict):
    kind: str


class OriginalRecord(OriginalKind, total=False):
    """What was at a path before the agent."""

    mode: int
    copy: str
    names: list[str]
    target: str


class PathRecord(TypedDict, total=False):
    kind: str
    original: OriginalRecord | None
    seen: dict[str, int]


class SysctlRecord(TypedDict, total=False):
    original: str | None


class SwapRecord(TypedDict, total=False):
    priority: int


class ServiceRecord(TypedDict, total=False):
    started_with: str


class ComponentRecords(TypedDict, total=False):
    paths: dict[str, PathRecord]
    sysctls: dict[str, SysctlRecord]
    modules: dict[str, dict[str, Any]]
    swaps: dict[str, SwapRecord]
    services: dict[str, ServiceRecord]


class LedgerDocument(TypedDict):
    """The types of what is used of a ledger."""

    components: dict[str, ComponentRecords]
    found: dict[str, list[str]]
    revision: Annotated[int, msgspec.Meta(ge=0)]


def check_shape(document: Any) -> None:
    """Raises ValueError if the structure is invalid."""
    for records in msgspec.convert(document, LedgerDocument)["components"].values():
        for name, record in records.get("paths", {}).items():
            is_absolute = name.startswith("/") and ".." not in name.split("/") and "\0" not in name
            original = record.get("original") or {"kind": ""}
            is_complete = all(key in original for key in REQUIRED_KEYS.get(original["kind"], ()))
            if not (is_absolute and is_complete and Path(name).name):  # the root directory is never owned
                raise ValueError(f"{name} is invalid")


FORMAT = 1
RESOURCE_KINDS = ("paths", "sysctls", "modules", "swaps", "services")
LedgerRecord = dict[str, Any]
FIRST_CONTACT = "firstContact"  # marks directories that are made before the first request to a provider


@dataclass
class OwnedResources:
    """The resources that one component owns."""

    paths: dict[str, LedgerRecord] = field(default_factory=dict)
    sysctls: dict[str, LedgerRecord] = field(default_factory=dict)
    modules: dict[str, LedgerRecord] = field(default_factory=dict)
    swaps: dict[str, LedgerRecord] = field(default_factory=dict)
    services: dict[str, LedgerRecord] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not any(getattr(self, kind) for kind in RESOURCE_KINDS)

    @property
    def is_first_contact(self) -> bool:
        """Whether these are only directories for the node key, which is made before the configuration is known."""
        return bool(self.paths) and all(FIRST_CONTACT in record for record in self.paths.values())


class Ledger:
    def __init__(self, host: Host, paths: tuple[str, ...]) -> None:
        """Reads the newest valid copy of the ledger."""
        self._host = host
        self.paths = paths
        self.damaged: tuple[str, ...] = ()
        self.components: dict[str, OwnedResources] = {}
        self.found: dict[str, list[str]] = {}  # pod network names that existed before the join
        self.revision = -1
        contents = {path: host.read(path) for path in paths}
        self._uneven = len(set(contents.values())) > 1  # the copies differ after a crash
        for path, content in contents.items():
            try:
                if content is not None:
                    components, found, revision = _parse_ledger(content)
                    if revision > self.revision:
                        self.components, self.found, self.revision = components, found, revision
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.damaged += (path,)

    @property
    def exists(self) -> bool:
        """Whether the ledger records any resource of a node: more than the directory of the first contact."""
        return any(not owned.empty and not owned.is_first_contact for owned in self.components.values())

    @property
    def records(self) -> list[tuple[str, LedgerRecord]]:
        """The paths of all components, with their records. Several components can own a directory."""
        return [item for owned in self.components.values() for item in owned.paths.items()]

    @property
    def services(self) -> frozenset[str]:
        return frozenset(name for owned in self.components.values() for name in owned.services)

    def owned(self, component: str) -> OwnedResources:
        return self.components.setdefault(component, OwnedResources())

    def record_before(self, component: str, spec: Spec, actions: Iterable[Action], originals: str) -> None:
        """Records the resources that the actions will own, and their originals."""
        with self._saved_if_changed():
            owned = self._own_directories(component, spec, originals)
            for action in actions:
                self._record_action(owned, action, originals)

    def record_directories(self, specs: Mapping[str, Spec], originals: str) -> None:
        """Records the directories that components will own, and their originals, with one write."""
        with self._saved_if_changed():
            for component, spec in specs.items():
                self._own_directories(component, spec, originals)

    def _own_directories(self, component: str, spec: Spec, originals: str) -> OwnedResources:
        owned = self.owned(component)
        for path in spec.owned_dirs:
            if path not in owned.paths:
                owned.paths[path] = {**self._original(path, originals), "ours": True}
        return owned

    def _record_action(self, owned: OwnedResources, action: Action, originals: str) -> None:
        match action:
            case EditFile(path):
                owned.paths.setdefault(
                    path, {"edited": True}
                )  # the file is not owned, but temporary files next to it are
            case MakeDirectory(path) | WriteFile(path) | MakeLink(path) | PlaceTree(_, path):
                if path not in owned.paths:
                    owned.paths[path] = self._original(path, originals)
                # Recorded before the action, so that it is known after a crash.
                owned.paths[path]["kind"] = KIND_OF[type(action)]
                if isinstance(action, PlaceTree):
                    owned.paths[path]["synced"] = False
            case SetSysctl(key):
                was = self._host.read(sysctl_path(key))
                owned.sysctls.setdefault(key, {"original": was.decode().strip() if was is not None else None})
            case LoadModule(name):
                owned.modules.setdefault(name, {})
            case SwapOff(device):
                swaps = parse_swaps(read_text(self._host, "/proc/swaps"))
                owned.swaps.setdefault(device, {"priority": swaps.get(device, -2)})
            case EnableUnit(name):
                owned.services.setdefault(name, {"started_with": ""})
            case StartUnit(name) | RestartUnit(name) | StopUnit(name):
                owned.services[name] = {"started_with": ""}

    def _original(self, path: str, originals: str) -> LedgerRecord:
        entry = self._host.stat(path)
        # What the agent wrote itself before the ledger was lost is not an original.
        if entry is None or is_marked(self._host, path, *(each.rpartition("/")[0] for each in self.paths)):
            return {"original": None}
        return {"original": self._save_original(path, entry, originals)}

    def _save_original(self, path: str, entry: FileEntry, originals: str) -> LedgerRecord:
        record: LedgerRecord = {"kind": entry.kind.value, "mode": entry.mode}
        if entry.kind in {EntryKind.DIRECTORY, EntryKind.LINK}:  # a link may point to a directory that is not empty
            record["names"] = list(self._host.list_dir(path))
        if entry.kind is EntryKind.LINK:
            record["target"] = entry.target
        elif entry.kind is EntryKind.FILE:
            record["copy"] = f"{originals}/{self._host.digest(path)}"
            self._host.apply(MakeDirectory(originals, 0o700))
            self._host.apply(WriteFile(record["copy"], self._host.read(path) or b"", 0o600))
        return record

    def make_first_directories(self, component: str, paths: Iterable[str]) -> None:
        """Creates directories of the agent before anything else of it is on the machine."""
        missing = [path for path in dict.fromkeys(paths) if self._host.stat(path) is None]
        for path in missing:
            self.owned(component).paths[path] = {"original": None, "kind": "directory", FIRST_CONTACT: True}
        if missing:
            self.save()
        for path in missing:
            self._host.apply(MakeDirectory(path, 0o700))

    def record_found(self, names: dict[str, list[str]]) -> None:
        """Records pod network names that existed before the join; only on an empty ledger."""
        if not self.exists and not self.found:
            self.found = names

    def record_after(self, component: str, spec: Spec, actions: Iterable[Action]) -> None:
        """Records the result of the actions: removed paths, started services, resources no longer owned."""
        owned, started = self.owned(component), spec.fingerprints
        with self._saved_if_changed():
            for action in actions:
                match action:
                    case Remove(path) | RemoveTree(path):
                        owned.paths.pop(path, None)
                    case StartUnit(name) | RestartUnit(name):
                        owned.services[name] = {"started_with": started.get(name, "")}
            desired = spec.paths | spec.parent_dirs
            for path in [path for path, record in owned.paths.items() if path not in desired]:
                if owned.paths[path].get("kind") != "program":
                    del owned.paths[path]
            for name in [name for name in owned.services if name not in started]:
                del owned.services[name]

    def record_synced(self, change_times: Callable[[str], dict[str, int]]) -> None:
        """Records that all programs are synced to disk, with the change times of their files for fast checks."""
        with self._saved_if_changed():
            for owned in self.components.values():
                for path, record in owned.paths.items():
                    if record.get("kind") == "program":
                        record.update(synced=True, seen=change_times(path))

    def forget(self, component: str) -> None:
        with self._saved_if_changed():
            self.components.pop(component, None)

    @contextlib.contextmanager
    def _saved_if_changed(self) -> Iterator[None]:
        """Saves the ledger after the block, unless all copies already have its text."""
        before = self._text()
        yield
        if self._uneven or self._text() != before:
            self.save()

    def save(self) -> None:
        """Writes all copies. One is sufficient: the other may be on a disk that is full, read-only or broken. Raises
        MachineError if none can be written.
        """
        self.revision += 1
        failures: list[MachineError] = []
        for path in self.paths:
            try:
                self._save_copy(path, self._text(self.revision))
            except MachineError as error:
                failures.append(error)
        if len(failures) == len(self.paths):
            raise failures[0]
        self._uneven = bool(failures)

    def _save_copy(self, path: str, text: bytes) -> None:
        folder, _, name = path.rpartition("/")
        if self._host.stat(folder) is not None:
            entry = self._host.stat(path)
            if entry and entry.kind is EntryKind.DIRECTORY:
                self._host.apply(SetAside(path))
            self._host.apply(WriteFile(path, text, 0o600))
            return
        # Create the directory and the ledger in one step: a directory without a ledger existed before the agent.
        self._make_parent(folder)
        self._host.apply(MakeDirectory(staging_dir(folder)))
        self._host.apply(WriteFile(f"{staging_dir(folder)}/{name}", text, 0o600))
        self._host.apply(PlaceTree(staging_dir(folder), folder))

    def _make_parent(self, path: str) -> None:
        parts = path.split("/")
        for count in range(2, len(parts)):
            folder = "/".join(parts[:count])
            if self._host.stat(folder) is None:
                self._host.apply(MakeDirectory(folder, 0o755))

    def _text(self, revision: int = 0) -> bytes:
        """Renders one line per component, because indented JSON is slower and the ledger is written often."""
        document = {
            name: {kind: getattr(owned, kind) for kind in RESOURCE_KINDS if getattr(owned, kind)}
            for name, owned in self.components.items()
            if not owned.empty
        }
        body = ",\n".join(f"{json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in document.items())
        found = json.dumps(self.found)
        head = f'"format": {FORMAT}, "revision": {revision}, "found": {found}'
        return f'{{{head}, "components": {{\n{body}\n}}}}\n'.encode()

    def copy(self, host: Host) -> Ledger:
        """Returns a copy for another host, for dry runs."""
        other = Ledger.__new__(Ledger)
        other._host, other.paths, other.damaged, other._uneven = host, self.paths, self.damaged, self._uneven
        other.components, other.found = copy.deepcopy(self.components), copy.deepcopy(self.found)
        other.revision = self.revision
        return other


KIND_OF = {MakeDirectory: "directory", WriteFile: "file", MakeLink: "link", PlaceTree: "program"}


def staging_dir(folder: str) -> str:
    """Returns the temporary path at which the ledger's directory is prepared."""
    return str(temporary_path(Path(folder)))


def _parse_ledger(content: bytes) -> tuple[dict[str, OwnedResources], dict[str, list[str]], int]:
    """Parses a copy: resources, names found before the join, and its revision."""
    document = json.loads(content)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}")
    check_shape(document)
    components = {name: OwnedResources(**kinds) for name, kinds in document["components"].items()}
    return components, document["found"], document["revision"]
