"""A host that changes nothing: it overlays changes on another host, for `--dry-run`."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from aks_flex_node.host.actions import (
    Action,
    DisableUnit,
    EnableUnit,
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
    WriteFile,
    aside_path,
)
from aks_flex_node.host.disk import aside_occupied_error
from aks_flex_node.host.host import CommandResult, EntryKind, FileEntry, Host, UnitState
from aks_flex_node.host.system import sysctl_path


class DryHost:
    """Reads from another host, and records actions without executing them. Later reads include their effects."""

    def __init__(self, below: Host) -> None:
        self._below = below
        self._entries: dict[str, FileEntry | None] = {}
        self._contents: dict[str, bytes] = {}
        self._units: dict[str, UnitState] = {}
        self._clock = 0
        self.done: list[Action] = []

    @property
    def live(self) -> bool:
        return self._below.live

    def read(self, path: str) -> bytes | None:
        path = self._followed(path)
        if path not in self._entries:
            return None if self._hidden(path) else self._below.read(path)
        return self._contents.get(path)

    def digest(self, path: str) -> str:
        if self._followed(path) not in self._entries and not self._hidden(self._followed(path)):
            return self._below.digest(path)
        content = self.read(path)
        return "" if content is None else hashlib.sha256(content).hexdigest()

    def stat(self, path: str) -> FileEntry | None:
        if path.endswith("/."):
            return self._stat_followed(self._followed(path))
        path = self._parents_followed(path)
        if path in self._entries:
            return self._entries[path]
        return None if self._hidden(path) else self._below.stat(path)

    def _stat_followed(self, path: str) -> FileEntry | None:
        """Returns the directory that a link points to."""
        if path in self._entries:
            return self._entries[path]
        return None if self._hidden(path) else self._below.stat(f"{path}/.")

    def list_dir(self, path: str) -> tuple[str, ...]:
        path = self._followed(path)
        entry = self._entries.get(path)
        is_gone = path in self._entries and (entry is None or entry.kind is not EntryKind.DIRECTORY)
        found = set() if self._hidden(path) or is_gone else set(self._below.list_dir(path))
        for other, entry in self._entries.items():
            folder, _, name = other.rpartition("/")
            if folder == path.rstrip("/"):
                (found.discard if entry is None else found.add)(name)
        return tuple(sorted(found))

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        return self._below.query(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return self._units.get(name) or self._below.unit(name)

    def apply(self, action: Action) -> None:
        self.done.append(action)
        self._clock += 1
        match action:
            case MakeDirectory(path, mode):
                self._put(path, FileEntry(EntryKind.DIRECTORY, mode))
            case WriteFile(path, content, mode):
                self._put(path, FileEntry(EntryKind.FILE, mode, size=len(content)), content)
            case MakeLink(path, target):
                self._put(path, FileEntry(EntryKind.LINK, 0o777, target=target))
            case Remove(path):
                self._remove(path)
            case RemoveTree(path):
                self._remove_tree(path)
            case SetAside(path):
                self._set_aside(path)
            case PlaceTree(source, path):
                self._move(source, path)
            case SetSysctl(key, value):
                self._put(sysctl_path(key), FileEntry(EntryKind.FILE), f"{value}\n".encode())
            case _:
                self._change_unit(action)

    def _set_aside(self, path: str) -> None:
        if self.stat(path) is None:
            return
        self._remove(aside_path(path))
        if self.stat(aside_path(path)) is not None:
            raise aside_occupied_error(path)
        self._move(path, aside_path(path))

    def _change_unit(self, action: Action) -> None:
        match action:
            case EnableUnit(name) | DisableUnit(name):
                state = replace(self.unit(name), enabled=isinstance(action, EnableUnit))
            case StartUnit(name) | RestartUnit(name):
                state = replace(self.unit(name), exists=True, active="active")
            case StopUnit(name):
                state = replace(self.unit(name), active="inactive", pid=0)
            case ReloadUnits():
                self._units = {name: replace(state, needs_reload=False) for name, state in self._units.items()}
                return
            case _:
                return
        self._units[state.name] = state

    def _put(self, path: str, entry: FileEntry, content: bytes | None = None) -> None:
        path = self._parents_followed(path)
        self._entries[path] = replace(entry, changed=self._clock)
        self._contents.pop(path, None)
        if content is not None:
            self._contents[path] = content

    def _remove(self, path: str) -> None:
        entry = self.stat(path)
        if entry and not (entry.kind is EntryKind.DIRECTORY and self.list_dir(path)):
            self._forget(self._parents_followed(path))

    def _remove_tree(self, path: str) -> None:
        path = self._parents_followed(path)
        for other in [other for other in self._entries if other.startswith(f"{path}/")]:
            del self._entries[other]
            self._contents.pop(other, None)
        self._forget(path)

    def _forget(self, path: str) -> None:
        self._entries[path] = None
        self._contents.pop(path, None)

    def _move(self, source: str, path: str) -> None:
        if self.stat(source) is None:
            return  # already moved, or not staged, because a dry run does not download
        moved = {
            f"{path}{other.removeprefix(source)}": (entry, self._contents.get(other))
            for other, entry in self._entries.items()
            if other == source or other.startswith(f"{source}/")
        }
        self._remove_tree(path)
        self._remove_tree(source)
        self._put(path, FileEntry(EntryKind.DIRECTORY, 0o755))
        for other, (entry, content) in moved.items():
            if entry:
                self._put(other, entry, content)

    def _hidden(self, path: str) -> bool:
        """Returns whether a parent directory was removed in the overlay."""
        parents = path.split("/")
        return any(self._entries.get("/".join(parents[:count]), 1) is None for count in range(2, len(parents)))

    def _parents_followed(self, path: str) -> str:
        folder, _, name = path.rstrip("/").rpartition("/")
        return f"{self._followed(folder)}/{name}" if folder else f"/{name}"

    def _followed(self, path: str, links: int = 40) -> str:
        """Resolves links that exist only in the overlay."""
        resolved = ""
        parts = [part for part in path.split("/") if part]
        for index, part in enumerate(parts):
            if part in {".", ".."}:
                resolved = resolved.rpartition("/")[0] if part == ".." else resolved
                continue
            resolved = f"{resolved}/{part}"
            entry = self._entries.get(resolved)
            if entry and entry.kind is EntryKind.LINK and links:
                start = "" if entry.target.startswith("/") else resolved.rpartition("/")[0] + "/"
                return self._followed("/".join([start + entry.target, *parts[index + 1 :]]), links - 1)
        return resolved or "/"
