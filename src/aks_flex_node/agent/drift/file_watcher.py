"""Reports changes of the files that components manage, using inotify: the paths to watch, the watcher, its thread.

Watches directories instead of files, because a replaced file is a new inode. Also watches their parent directories,
to detect directories that are moved, removed or recreated.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import MANIFEST_NAME, TreeManifest
from aks_flex_node.agent.components.catalog import ALL, managed_components
from aks_flex_node.agent.drift.detection import UNIT_DIRS
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.reconcile.resources import (
    Directory,
    File,
    FileLine,
    PemFile,
    ProgramTree,
    Resource,
    Service,
    Symlink,
    parent_dirs,
    tree_dirs,
)
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host


CLOSE_WRITE, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x8, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
ONLYDIR, MASK_ADD = 0x1000000, 0x20000000
APPEARED, DISAPPEARED = MOVED_TO | CREATE, MOVED_FROM | DELETE
ENTRY_CHANGES = APPEARED | DISAPPEARED | DELETE_SELF | MOVE_SELF
ALL_CHANGES = ENTRY_CHANGES | CLOSE_WRITE | ATTRIB
DIRECTORY_GONE = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED  # the directory was moved or removed
HEADER = struct.Struct("iIII")
READ_BYTES = 1 << 16


@frozen
class InotifyEvent:
    watch: int
    mask: int
    name: str  # empty for events of the directory itself


def read_events(descriptor: int) -> Iterator[InotifyEvent]:
    """Yields all available events without blocking."""
    while True:
        try:
            block = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        yield from parse_events(block)


def parse_events(block: bytes) -> Iterator[InotifyEvent]:
    at = 0
    while at < len(block):
        watch, mask, _, length = HEADER.unpack_from(block, at)
        at += HEADER.size
        yield InotifyEvent(watch, mask, os.fsdecode(block[at : at + length].rstrip(b"\0")))
        at += length


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(result: int, about: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), about)
    return result


class PathWatcher:
    """Watches paths; a path that ends with a slash means all entries of that directory."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._parents = {path.rpartition("/")[0] or "/" for path in self._paths}
        self._folders = {"/", *self._parents, *(folder for path in self._paths for folder in parent_dirs(path))}
        self._watches: dict[str, int] = {}  # directory -> watch number; two paths may have the same
        self._lock = threading.Lock()  # one thread waits, and another may close
        self._closed = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.problem = ""  # why not everything is watched; periodic drift checks still detect changes
        self._inotify = self._open()
        self._watch()

    def wait(self, seconds: float) -> frozenset[str]:
        """Returns the changed paths; empty after the time limit or when closed."""
        end = time.monotonic() + seconds
        while not self._closed:
            left = end - time.monotonic()
            if left <= 0:
                return frozenset()
            poll = select.poll()
            for descriptor in (self._wakeup, self._inotify):
                if descriptor >= 0:
                    poll.register(descriptor, select.POLLIN)
            poll.poll(left * 1000)
            if touched := self._touched():
                return touched
        self._close_descriptors()
        return frozenset()

    def close(self) -> None:
        """Ends the current wait and all later ones; may be called from another thread."""
        with self._lock:
            self._closed = True
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def __enter__(self) -> PathWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._close_descriptors()

    def _open(self) -> int:
        try:
            return _check_result(_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        except OSError as error:
            self.problem = f"files are not watched: {error.strerror}"
            return -1

    def _touched(self) -> frozenset[str]:
        with self._lock:
            touched: set[str] = set()
            for event in list(read_events(self._inotify)) if self._inotify >= 0 else ():
                touched |= self._paths_of(event)
            return frozenset(touched | self._watch())

    def _paths_of(self, event: InotifyEvent) -> set[str]:
        """Returns the watched paths that an event affects."""
        if event.mask & OVERFLOW:
            return self._forget_directory("/") | set(self._paths)
        found: set[str] = set()
        for folder in [folder for folder, watch in self._watches.items() if watch == event.watch]:
            found |= self._paths_in(folder, event)
        return found

    def _paths_in(self, folder: str, event: InotifyEvent) -> set[str]:
        path = f"{folder.rstrip('/')}/{event.name}" if event.name else folder
        if event.mask & DIRECTORY_GONE:
            return self._forget_directory(folder)
        if event.name and path in self._folders and event.mask & (APPEARED | DISAPPEARED):
            return self._forget_directory(path)
        whole = event.name and f"{folder}/" in self._paths
        return {path} if whole or path in self._paths else set()

    def _forget_directory(self, folder: str) -> set[str]:
        """Drops the watches of a directory that was created, removed or replaced; returns the watched paths in it."""
        start = f"{folder.rstrip('/')}/"
        for path in [one for one in self._watches if one == folder or one.startswith(start)]:
            _library().inotify_rm_watch(
                self._inotify, self._watches.pop(path)
            )  # errors are ignored: the kernel may have removed the watch
        return {path for path in self._paths if path == folder or path.startswith(start)}

    def _watch(self) -> set[str]:
        """Adds missing watches; returns the paths in newly watched directories, which may have changed before."""
        fresh: set[str] = set()
        for folder in sorted(self._folders - set(self._watches)) if self._inotify >= 0 else ():
            mask = ALL_CHANGES if folder in self._parents else ENTRY_CHANGES
            try:
                # Watches a directory; returns the watch number that its events have. A directory that is reached
                # by two paths has one number, with the masks of both.
                flags = mask | ONLYDIR | MASK_ADD
                self._watches[folder] = _check_result(
                    _library().inotify_add_watch(self._inotify, os.fsencode(folder), flags), folder
                )
            except (FileNotFoundError, NotADirectoryError):
                continue  # the watch of a parent directory reports its creation
            except OSError as error:
                self.problem = f"{folder} is not watched: {error.strerror}"
                continue
            fresh |= {path for path in self._paths if path.rpartition("/")[0] == folder}
        return fresh

    def _close_descriptors(self) -> None:
        with self._lock:
            for descriptor in (self._wakeup, self._inotify):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wakeup = self._inotify = -1


WANTS_DIR = "/etc/systemd/system/multi-user.target.wants"


def watch_paths(engine: Engine, components: Sequence[Component] = ALL) -> frozenset[str]:
    """Returns the paths to watch. Kernel settings have no change events and are only compared periodically."""
    specs = [component.desired(engine.config, engine.machine) for component in components]
    return frozenset(path for spec in specs for one in spec.resources for path in _paths(one, engine.host))


def _paths(resource: Resource, host: Host) -> Iterator[str]:
    match resource:
        case File(path, watch_directory=True):
            yield from (path, path.rpartition("/")[0] + "/")
        case Directory(path) | File(path) | FileLine(path) | Symlink(path):
            yield path
        case PemFile(path):  # it may be a link to another file in the same directory
            yield path.rpartition("/")[0] + "/"
        case ProgramTree():
            manifest = TreeManifest.parse(host.read(f"{resource.path}/{MANIFEST_NAME}"))
            names = (MANIFEST_NAME, *(manifest.files if manifest else ()))
            yield from (f"{resource.path}/{name}" for name in names)
            yield from tree_dirs(resource.path, names)
        case Service(name):
            yield f"{WANTS_DIR}/{name}"
            yield from (f"{directory}/{name}.d/" for directory in UNIT_DIRS)


WAIT_SECONDS = 3600.0
PAUSE_SECONDS = 0.5  # limits the rate of reports


class FileWatcher:
    def __init__(self, engine: Engine, touched: Callable[[frozenset[str]], None]) -> None:
        managed = watch_paths(engine, managed_components(engine.ledger, engine.config))
        self._watcher = PathWatcher(managed | {POLICY_FILE})
        self._on_change = touched
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="file-watcher", daemon=True).start()

    def close(self) -> None:
        self._watcher.close()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            paths = self._watcher.wait(WAIT_SECONDS)
            if paths and not self._stopped.is_set():
                self._on_change(paths)
                self._stopped.wait(PAUSE_SECONDS)
        self._watcher.wait(0.0)  # releases the descriptors of the closed watcher
