"""Waits for somebody to touch what is ours, and costs nothing until then.

Directories are watched, not files: a file that is replaced is another file. Those above them are watched, too, so
that a directory which is moved, removed or made again is noticed wherever that happens.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.drifting import notices
from aks_flex_node.agent.engine.resources import above

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.agent.drifting.notices import Notice


class Sentinel:
    """Watches paths; one that ends with a slash stands for everything that is in that directory."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._homes = {path.rpartition("/")[0] or "/" for path in self._paths}
        self._folders = {"/", *self._homes, *(folder for path in self._paths for folder in above(path))}
        self._watches: dict[str, int] = {}  # of directories; two paths may lead to one
        self._alone = threading.Lock()  # one thread waits, and another may drain
        self._closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.problem = ""  # why it does not see everything; the comparison by the clock still does
        self._notices = self._open()
        self._watch()

    def wait(self, seconds: float) -> frozenset[str]:
        """The paths of interest that were touched; none when nothing was in this time, or when it was closed."""
        end = time.monotonic() + seconds
        while not self._closed:
            left = end - time.monotonic()
            if left <= 0:
                return frozenset()
            self._sleep(left)
            if touched := self._touched():
                return touched
        self._shut()
        return frozenset()

    def close(self) -> None:
        """May be called from another thread: a wait ends, and so does every later one."""
        with self._alone:
            self._closed = True
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def __enter__(self) -> Sentinel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._shut()

    def _open(self) -> int:
        try:
            return notices.opened()
        except OSError as error:
            self.problem = f"files are not watched: {error.strerror}"
            return -1

    def _sleep(self, seconds: float) -> None:
        poll = select.poll()
        for descriptor in (self._bell, self._notices):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)

    def _touched(self) -> frozenset[str]:
        with self._alone:
            touched: set[str] = set()
            for notice in list(notices.taken(self._notices)) if self._notices >= 0 else ():
                touched |= self._meant(notice)
            return frozenset(touched | self._watch())

    def _meant(self, notice: Notice) -> set[str]:
        """The paths of interest that a notice is about."""
        if notice.mask & notices.OVERFLOW:
            return self._lost("/") | set(self._paths)
        found: set[str] = set()
        for folder in [folder for folder, watch in self._watches.items() if watch == notice.watch]:
            found |= self._in(folder, notice)
        return found

    def _in(self, folder: str, notice: Notice) -> set[str]:
        path = f"{folder.rstrip('/')}/{notice.name}" if notice.name else folder
        if notice.mask & notices.LOST:
            return self._lost(folder)
        if notice.name and path in self._folders and notice.mask & (notices.COMING | notices.GOING):
            return self._lost(path)
        whole = notice.name and f"{folder}/" in self._paths
        return {path} if whole or path in self._paths else set()

    def _lost(self, folder: str) -> set[str]:
        """A directory has come, has gone, or another has taken its place: it is watched anew, with all in it."""
        start = f"{folder.rstrip('/')}/"
        for place in [one for one in self._watches if one == folder or one.startswith(start)]:
            notices.unwatched(self._notices, self._watches.pop(place))
        return {path for path in self._paths if path == folder or path.startswith(start)}

    def _watch(self) -> set[str]:
        """Watch every directory that is there and is not watched; what is in it may have come before the watch."""
        fresh: set[str] = set()
        for folder in sorted(self._folders - set(self._watches)) if self._notices >= 0 else ():
            mask = notices.EVERYTHING if folder in self._homes else notices.COMING_AND_GOING
            try:
                self._watches[folder] = notices.watched(self._notices, folder, mask)
            except (FileNotFoundError, NotADirectoryError):
                continue  # what is above it tells when it comes
            except OSError as error:
                self.problem = f"{folder} is not watched: {error.strerror}"
                continue
            fresh |= {path for path in self._paths if path.rpartition("/")[0] == folder}
        return fresh

    def _shut(self) -> None:
        with self._alone:
            for descriptor in (self._bell, self._notices):
                if descriptor >= 0:
                    os.close(descriptor)
            self._bell = self._notices = -1
