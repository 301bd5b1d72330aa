"""The bytes of an answer: as fast as the machine can, or as badly as a switch demands.

The fast path costs one copy and one encryption a byte: a buffer that is used again and again is filled from the page
cache and handed to TLS in one large write, during which other threads run. It does not map the file, because a file
that becomes shorter while it is mapped would kill the whole mirror.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

CHUNK = 256 * 1024
DAMAGE = 64  # bytes that a corrupt answer has wrong
DRAIN_SECONDS = 5.0
TICK = 0.1  # seconds between two looks at whether the client, or the switch, is still there
FLIPPED = bytes(255 - value for value in range(256))


class Body(Protocol):
    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill the view with the bytes from `offset` on; how many were there."""


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
    """Another body with every bit of a few bytes flipped, from `start` to `end`."""

    sound: Body
    start: int
    end: int

    @classmethod
    def amid(cls, sound: Body, start: int, length: int) -> DamagedBody:
        """Damage in the middle of what will be sent, where only a checksum finds it."""
        width = min(DAMAGE, length)
        first = start + (length - width) // 2
        return cls(sound, first, first + width)

    def read_into(self, view: memoryview, offset: int) -> int:
        count = self.sound.read_into(view, offset)
        low, high = max(self.start, offset), min(self.end, offset + count)
        if low < high:
            wrong = slice(low - offset, high - offset)
            view[wrong] = view[wrong].tobytes().translate(FLIPPED)
        return count


@dataclass(frozen=True)
class Delivery:
    """One answer's way to one client. `note` is told of every byte before it goes out."""

    connection: socket.socket
    body: Body
    buffer: memoryview
    note: Callable[[int], None]

    def pour(self, start: int, end: int) -> None:
        """Send these bytes at full speed."""
        if isinstance(self.body, FileBody) and not isinstance(self.connection, ssl.SSLSocket):
            self.note(end - start)
            if end > start and self.connection.sendfile(self.body.file, start, end - start) < end - start:
                raise ConnectionAbortedError("the file became shorter while it was sent")
            return
        while start < end:
            start += self._send(start, min(CHUNK, end - start))

    def drip(self, start: int, end: int, rate: int, is_on: Callable[[], bool]) -> None:
        """Send so many bytes a second, and the rest at full speed once the switch is off."""
        portion = max(1, min(CHUNK, int(rate * TICK)))
        began, sent = time.monotonic(), 0
        while start + sent < end and is_on():
            early = began + sent / rate - time.monotonic()
            if early > 0:
                time.sleep(min(early, TICK))
            else:
                sent += self._send(start + sent, min(portion, end - start - sent))
        self.pour(start + sent, end)

    def _send(self, offset: int, count: int) -> int:
        view = self.buffer[:count]
        if self.body.read_into(view, offset) < count:
            raise ConnectionAbortedError("the file became shorter while it was sent")
        self.note(count)
        self.connection.sendall(view)
        return count


def hold(connection: socket.socket, seconds: float, is_on: Callable[[], bool]) -> None:
    """Say nothing until the client leaves, the time is over or the switch is off."""
    watch = select.poll()
    watch.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    end = time.monotonic() + seconds
    while is_on() and time.monotonic() < end:
        if watch.poll(TICK * 1000):
            return


def sever(connection: socket.socket) -> None:
    """Reset the connection, once the client's kernel has all that was sent.

    A reset throws away what still waits to be sent, which would make "cut after N bytes" mean anything below N.
    """
    end = time.monotonic() + DRAIN_SECONDS
    while unsent(connection) and time.monotonic() < end:
        time.sleep(0.001)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket.close(connection.detach())  # detached, so that nobody says goodbye on it first


def unsent(connection: socket.socket) -> int:
    """Bytes that the other side has not acknowledged."""
    waiting = fcntl.ioctl(connection, termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", waiting)[0])
