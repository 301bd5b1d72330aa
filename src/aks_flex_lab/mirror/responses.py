"""HTTP responses of the mirror: status, headers and byte ranges (RFC 9110), and sending the body, with faults."""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import ssl
import struct
import termios
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Mapping


RANGE_HEADER = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.IGNORECASE)
CONTENT_TYPES = {
    (".tar.gz", ".tgz", ".gz"): "application/gzip",
    (".sha256", ".sha512", ".sha256sum", ".sha512sum", ".txt"): "text/plain; charset=utf-8",
    (".json",): "application/json",
    (".yaml", ".yml"): "application/yaml",
    (".deb",): "application/vnd.debian.binary-package",
    (".zip",): "application/zip",
}


@dataclass(frozen=True)
class FileFacts:
    """Size, modification time and type of a file, known before it is read."""

    name: str
    size: int
    changed_ns: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> FileFacts:
        return cls(name, status.st_size, status.st_mtime_ns)

    @property
    def etag(self) -> str:
        return f'"{self.changed_ns:x}-{self.size:x}"'

    @property
    def last_modified(self) -> str:
        return formatdate(self.changed_ns // 1_000_000_000, usegmt=True)

    @property
    def content_type(self) -> str:
        return next(
            (kind for suffixes, kind in CONTENT_TYPES.items() if self.name.endswith(suffixes)),
            "application/octet-stream",
        )


@dataclass(frozen=True)
class FileResponse:
    """A response with `length` bytes of a file from `start`."""

    status: int
    headers: Mapping[str, str]
    start: int = 0
    length: int = 0


@dataclass(frozen=True)
class ByteRange:
    start: int
    length: int


class RangeNotSatisfiable(Exception):  # noqa: N818 - RFC 9110's word for it
    """The requested range begins after the end of the file."""


def file_response(facts: FileFacts, request_headers: Mapping[str, str]) -> FileResponse:
    """Returns a 200, 206, 304 or 416 response for the headers of a request, whose names are in lower case."""
    validators = {"ETag": facts.etag, "Last-Modified": facts.last_modified}
    if is_not_modified(facts, request_headers):
        return FileResponse(304, validators)
    try:
        span = (
            parse_range(request_headers.get("range", ""), facts.size) if may_resume(facts, request_headers) else None
        )
    except RangeNotSatisfiable:
        return FileResponse(416, {"Content-Range": f"bytes */{facts.size}", "Content-Length": "0"})
    headers = {**validators, "Accept-Ranges": "bytes", "Content-Type": facts.content_type}
    if span is None:
        return FileResponse(200, {**headers, "Content-Length": str(facts.size)}, 0, facts.size)
    last = span.start + span.length - 1
    headers["Content-Range"] = f"bytes {span.start}-{last}/{facts.size}"
    return FileResponse(206, {**headers, "Content-Length": str(span.length)}, span.start, span.length)


def parse_range(header: str, size: int) -> ByteRange | None:
    """Returns the requested range; None (the whole file) for several ranges or an invalid one."""
    match = RANGE_HEADER.fullmatch(header.strip())
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if length == 0:
            raise RangeNotSatisfiable
        return ByteRange(size - length, length)
    start = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise RangeNotSatisfiable
    return ByteRange(start, last - start + 1)


def is_not_modified(facts: FileFacts, request_headers: Mapping[str, str]) -> bool:
    """Returns whether the client's copy is current. An entity tag has precedence over a date."""
    tags = request_headers.get("if-none-match")
    if tags is not None:
        known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return "*" in known or facts.etag in known
    since = parse_date(request_headers.get("if-modified-since", ""))
    return since is not None and facts.changed_ns // 1_000_000_000 <= since.timestamp()


def may_resume(facts: FileFacts, request_headers: Mapping[str, str]) -> bool:
    """Returns whether a range can be served: with If-Range, only if the file has not changed."""
    condition = request_headers.get("if-range")
    return condition is None or condition.strip() in {facts.etag, facts.last_modified}


def parse_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


CHUNK_BYTES = 256 * 1024
DAMAGED_BYTES = 64  # number of wrong bytes in a corrupt response
DRAIN_SECONDS = 5.0
TICK = 0.1  # seconds between two checks whether the client and the fault rule still exist
FLIPPED = bytes(255 - value for value in range(256))


class ResponseBody(Protocol):
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fills the view with the bytes from `offset`, and returns their number."""


@dataclass(frozen=True)
class FileBody:
    file: io.FileIO

    def read_into(self, view: memoryview, offset: int) -> int:
        return os.preadv(self.file.fileno(), [view], offset)


@dataclass(frozen=True)
class TextBody:
    content: bytes

    def read_into(self, view: memoryview, offset: int) -> int:
        piece = self.content[offset : offset + len(view)]
        view[: len(piece)] = piece
        return len(piece)


@dataclass(frozen=True)
class DamagedBody:
    """A body in which all bits of the bytes from `start` to `end` are inverted."""

    original: ResponseBody
    start: int
    end: int

    @classmethod
    def in_middle(cls, sound: ResponseBody, start: int, length: int) -> DamagedBody:
        """Damages the middle of the sent bytes, where only a checksum detects it."""
        width = min(DAMAGED_BYTES, length)
        first = start + (length - width) // 2
        return cls(sound, first, first + width)

    def read_into(self, view: memoryview, offset: int) -> int:
        count = self.original.read_into(view, offset)
        low, high = max(self.start, offset), min(self.end, offset + count)
        if low < high:
            wrong = slice(low - offset, high - offset)
            view[wrong] = view[wrong].tobytes().translate(FLIPPED)
        return count


@dataclass(frozen=True)
class BodySender:
    """Sends a response to a client. Calls `note` with the number of bytes before it sends them."""

    connection: socket.socket
    body: ResponseBody
    buffer: memoryview
    count_bytes: Callable[[int], None]

    def send(self, start: int, end: int) -> None:
        """Sends bytes at full speed."""
        if isinstance(self.body, FileBody) and not isinstance(self.connection, ssl.SSLSocket):
            self.count_bytes(end - start)
            if end > start and self.connection.sendfile(self.body.file, start, end - start) < end - start:
                raise ConnectionAbortedError("the file became shorter while it was sent")
            return
        while start < end:
            start += self._send(start, min(CHUNK_BYTES, end - start))

    def send_throttled(self, start: int, end: int, rate: int, is_on: Callable[[], bool]) -> None:
        """Sends bytes at a limited rate, and the rest at full speed when the fault rule is removed."""
        portion = max(1, min(CHUNK_BYTES, int(rate * TICK)))
        began, sent = time.monotonic(), 0
        while start + sent < end and is_on():
            early = began + sent / rate - time.monotonic()
            if early > 0:
                time.sleep(min(early, TICK))
            else:
                sent += self._send(start + sent, min(portion, end - start - sent))
        self.send(start + sent, end)

    def _send(self, offset: int, count: int) -> int:
        view = self.buffer[:count]
        if self.body.read_into(view, offset) < count:
            raise ConnectionAbortedError("the file became shorter while it was sent")
        self.count_bytes(count)
        self.connection.sendall(view)
        return count


def hold_connection(connection: socket.socket, seconds: float, is_on: Callable[[], bool]) -> None:
    """Sends nothing until the client disconnects, the time is over or the fault rule is removed."""
    watch = select.poll()
    watch.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    end = time.monotonic() + seconds
    while is_on() and time.monotonic() < end:
        if watch.poll(TICK * 1000):
            return


def reset_connection(connection: socket.socket) -> None:
    """Resets the connection after the client's kernel has acknowledged all sent bytes.

    A reset discards bytes that wait to be sent, so that "cut after N bytes" would otherwise send fewer than N.
    """
    end = time.monotonic() + DRAIN_SECONDS
    while unsent_bytes(connection) and time.monotonic() < end:
        time.sleep(0.001)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket.close(connection.detach())  # detached, so that no TLS close alert is sent first


def unsent_bytes(connection: socket.socket) -> int:
    """Returns the number of bytes that the other side has not acknowledged."""
    waiting = fcntl.ioctl(connection, termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", waiting)[0])
