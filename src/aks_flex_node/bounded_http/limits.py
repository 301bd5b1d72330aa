"""Limits the total time of a request and the size of its response.

The timeouts of a socket limit only the time between two bytes: a server that sends one byte of a header each second
would never end. `time_limit` shuts the sockets of the current thread's requests down when the time is over. It has an
effect on the connections of `bounded_http.connections` only.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from time import monotonic  # of the thread that waits, also while a test replaces `time.monotonic`
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import BaseHTTPResponse

READ_BYTES = 1 << 16
Response = TypeVar("Response")
REPEAT_SECONDS = 0.5  # a connection that is just established has no socket that can be shut down
_thread = threading.local()


class RequestTimeout(TimeoutError):  # noqa: N818 - like the exception of the standard library
    """The server did not complete its response in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the response was not complete within {seconds:g} s (timed out)")
        self.seconds = seconds


class BodyLimitError(Exception):
    """The body is too large, or its compressed data is damaged. The message says which."""


class ActiveLimit:
    """The connections of one thread's requests, and whether their time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expired = False
        self._end = time.monotonic() + seconds
        self._watched: list[Any] = []  # connections, and sockets that connections have released to their responses

    def watch(self, item: Any) -> None:
        if item is not None and not any(each is item for each in self._watched):
            self._watched.append(item)

    def expire(self) -> None:
        self.expired = True
        for each in tuple(self._watched):
            with suppress(Exception):  # one connection must not end the limits of all others
                interrupt(_socket_of(each))

    def close(self) -> None:
        """Closes what was interrupted: no caller gets the response."""
        for each in self._watched:
            with suppress(Exception):
                close_socket(_socket_of(each))
                each.close()  # a connection without a socket can be used again

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()


class Watchdog:
    """Expires the limits of all threads, in one thread: a download has a limit for each of a thousand reads, and
    starting a thread for each would cost more than the read.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[ActiveLimit, float] = {}
        self._wakes = 0.0
        self._thread: threading.Thread | None = None

    def add(self, limit: ActiveLimit) -> None:
        due = monotonic() + limit.seconds
        with self._changed:
            self._due[limit] = due
            if self._thread is None or not self._thread.is_alive():
                self._wakes = due
                self._thread = threading.Thread(target=self._run, name="time limits", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def remove(self, limit: ActiveLimit) -> None:
        """Afterwards the limit interrupts nothing: a closed descriptor can belong to another file at once."""
        with self._changed:
            del self._due[limit]

    def _run(self) -> None:
        with self._changed:
            while self._due:
                now = monotonic()
                for limit in [limit for limit, due in self._due.items() if due <= now]:
                    limit.expire()
                    self._due[limit] = now + REPEAT_SECONDS
                self._wakes = min(self._due.values())
                self._changed.wait(self._wakes - now)
            self._thread = None


_watchdog = Watchdog()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limits all requests that this thread sends inside the block, from the connection to the last byte of the body.

    Raises RequestTimeout, also if the interrupted response looks complete. A block inside another one has its own
    limit alone.
    """
    limit, outer = ActiveLimit(seconds), getattr(_thread, "limit", None)
    _thread.limit = limit
    _watchdog.add(limit)
    try:
        yield
    except Exception:
        if limit.expired:
            raise RequestTimeout(seconds) from None
        raise
    finally:
        _thread.limit = outer
        _watchdog.remove(limit)
        if limit.expired:
            limit.close()
    if limit.expired:
        raise RequestTimeout(seconds)


def watch(item: Any) -> None:
    """Adds a connection or a socket to the limit of this thread, if there is one."""
    if limit := getattr(_thread, "limit", None):
        limit.watch(item)


def seconds_to_connect(seconds: float | None) -> float | None:
    """Returns how long a connection attempt may take. Raises RequestTimeout if the limit of this thread is over."""
    limit = getattr(_thread, "limit", None)
    if limit is None:
        return seconds
    if limit.seconds_left <= 0:
        limit.expired = True
        raise RequestTimeout(limit.seconds)
    return float(limit.seconds_left if seconds is None else min(seconds, limit.seconds_left))


def with_socket(response: Response, link: Any) -> Response:
    """Remembers the socket of a response, which urllib3 does not tell once the connection has released it."""
    response.__dict__["_bounded_socket"] = link
    return response


def response_socket(response: object) -> Any:
    return getattr(response, "_bounded_socket", None)


def interrupt(link: Any) -> None:
    """Ends a read of a socket in another thread."""
    link = getattr(link, "socket", link)  # of TLS inside TLS
    with suppress(OSError, ValueError):
        if isinstance(link, socket.socket):
            socket.socket.shutdown(link, socket.SHUT_RDWR)  # SSLSocket.shutdown would disturb the reading thread


def _socket_of(item: Any) -> Any:
    return item if isinstance(item, socket.socket) else getattr(item, "sock", None)


def close_socket(link: Any) -> None:
    """Closes a socket at once, also if a response still refers to it."""
    link = getattr(link, "socket", link)
    with suppress(OSError, ValueError):
        if isinstance(link, socket.socket) and (descriptor := link.detach()) >= 0:
            os.close(descriptor)


def read_body(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    """Reads the whole body. Raises BodyLimitError, and closes the connection, when it is larger than allowed.

    The body is not decompressed: a small response could become a very large one. Use it inside `time_limit`.
    """
    pieces, size = list[bytes](), 0
    while piece := response.read1(READ_BYTES, decode_content=False):
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            response.close()
            raise BodyLimitError(f"it is larger than {max_bytes >> 20} MiB")
    return b"".join(pieces)
