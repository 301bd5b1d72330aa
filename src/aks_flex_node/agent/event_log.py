"""Writes structured events, one line each, to the systemd journal and to the log file.

All events of one command have the same request ID.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aks_flex_node.timestamps import format_utc_milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

JOURNAL_SOCKET = "/run/systemd/journal/socket"
LEVELS = ("debug", "info", "warning", "error")
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
MAX_LOG_BYTES = 8 << 20  # then the file is rotated; one old file is kept


EventSink: TypeAlias = "Callable[[str, str, str], None]"  # gets the level, the event as JSON, and its message


class EventLog:
    """Emits events to all sinks at or above a level; all events have the same request ID."""

    def __init__(
        self, *sinks: EventSink, level: str = "info", watch: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._sinks = list(sinks)
        self._min_level = LEVELS.index(level)
        self._observer = watch
        self.request_id = str(uuid.uuid4())

    def add(self, sink: EventSink) -> None:
        self._sinks.append(sink)

    def emit(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        record = {
            "time": format_utc_milliseconds(time.time()),
            "level": level,
            "event": event,
            "message": message,
            "requestId": self.request_id,
            **fields,
        }
        if self._observer:
            self._observer(record)
        if LEVELS.index(level) >= self._min_level:
            for sink in self._sinks:
                with contextlib.suppress(
                    OSError
                ):  # a failed log write, for example on a full disk, must not stop the operation
                    sink(level, json.dumps(record, default=str), message)


class LogFileSink:
    """Appends events to a log file that only root can read, and rotates it at `MAX_LOG_BYTES`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, level: str, line: str, text: str) -> None:  # noqa: ARG002
        if self._path.exists() and self._path.stat().st_size > MAX_LOG_BYTES:
            self._path.replace(f"{self._path}.1")
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        with os.fdopen(handle, "a") as file:
            file.write(line + "\n")


class JournalSink:
    """Sends events to the systemd journal through its native protocol."""

    def __init__(self, path: str = JOURNAL_SOCKET, seconds: float = 1.0) -> None:
        self._path = path
        self._seconds = seconds  # journald accepts a line immediately, or hangs
        self._hangs = False

    def __call__(self, level: str, line: str, text: str) -> None:
        if self._hangs:
            return  # wait only once for a hung journald
        message = text.replace("\n", " ")
        fields = (
            f"PRIORITY={PRIORITIES[level]}\nSYSLOG_IDENTIFIER=aks-flex-node\nMESSAGE={message}\nFLEX_EVENT={line}\n"
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(self._seconds)
            try:
                channel.sendto(fields.encode(), self._path)
            except TimeoutError:
                self._hangs = True


def read_last(path: str, count: int) -> list[dict[str, Any]]:
    """Returns the last events of a log file; skips a line that a crash truncated."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for line in Path(path).read_text(errors="replace").splitlines()[-count:]:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]
