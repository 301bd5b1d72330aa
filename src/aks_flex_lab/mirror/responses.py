"""HTTP responses of the mirror: status, headers and byte ranges, and sending the body, with faults."""

from __future__ import annotations

import fcntl
import re
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


RANGE_HEADER = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class FileResponse:
    """A response with `length` bytes of a file from `start`."""

    status: int
    headers: Mapping[str, str]
    start: int = 0
    length: int = 0


def file_response(file: os.stat_result, range_header: str = "", if_range: str | None = None) -> FileResponse:
    """Returns the whole file, or the requested range if the file has not changed since."""
    size, etag = file.st_size, f'"{file.st_mtime_ns:x}-{file.st_size:x}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    span = RANGE_HEADER.fullmatch(range_header) if if_range in {None, etag} else None
    if span is None:
        return FileResponse(200, {**headers, "Content-Length": str(size)}, 0, size)
    start, last = int(span[1]), min(int(span[2] or size), size - 1)
    if start > last:
        return FileResponse(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
    length = last - start + 1
    headers |= {"Content-Range": f"bytes {start}-{last}/{size}", "Content-Length": str(length)}
    return FileResponse(206, headers, start, length)


CHUNK_BYTES = 256 * 1024
DAMAGED_BYTES = 64  # number of wrong bytes in a corrupt response
DRAIN_SECONDS = 5.0
TICK = 0.1  # seconds between two checks whether the client and the fault rule still exist
FLIPPED = bytes(255 - value for value in range(256))

ReadBody: TypeAlias = Callable[[int, int], bytes]  # returns the bytes from an offset, at most a number of them


def damaged(read: ReadBody, start: int, length: int) -> ReadBody:
    """Inverts all bits of some bytes in the middle of those that are sent, where only a checksum detects it."""
    width = min(DAMAGED_BYTES, length)
    first = start + (length - width) // 2

    def read_damaged(offset: int, count: int) -> bytes:
        data = read(offset, count)
        low, high = max(first - offset, 0), max(first + width - offset, 0)
        return data[:low] + data[low:high].translate(FLIPPED) + data[high:]

    return read_damaged


@dataclass(frozen=True)
class BodySender:
    """Sends a response to a client. Calls `count_bytes` with the number of bytes before it sends them."""

    connection: socket.socket
    read: ReadBody
    count_bytes: Callable[[int], None]

    def send(self, start: int, end: int) -> None:
        """Sends bytes at full speed."""
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
        data = self.read(offset, count)
        if len(data) < count:
            raise ConnectionAbortedError("the file became shorter while it was sent")
        self.count_bytes(count)
        self.connection.sendall(data)
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
