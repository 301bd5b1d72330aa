"""What a server can do to a client. The matrix of answers runs each of these against each client."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.service.agent.daemon.fake_providers import answer, hangs, never_ends, read_request, says

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

HTML = b"<html><title>Please sign in to the hotel</title></html>"
PAGE = "content-type: text/html"
BOMB_BYTES = 256 << 20


@dataclass(frozen=True)
class Behaviour:
    does: Callable[[socket.socket, threading.Event], None]
    certificate: str = "good"  # or `other` (of another CA), `expired`
    speaks_http: bool = True  # means something to clients of other protocols, too


def bomb() -> bytes:
    """Returns a small gzip body that becomes very large."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    piece = bytes(1 << 20)
    return b"".join([*(packer.compress(piece) for _ in range(BOMB_BYTES >> 20)), packer.flush()])


def drips_headers(link: socket.socket, over: threading.Event) -> None:
    """Sends a header one byte at a time: each byte arrives before the timeout of the socket."""
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while not over.wait(0.1):
        link.sendall(b"a")


def drips_body(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
    while not over.wait(0.1):
        link.sendall(b" ")


def drips_until_closed(link: socket.socket, over: threading.Event) -> None:
    """Sends a body without a length: an interruption looks like its end."""
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}")
    while not over.wait(0.1):
        link.sendall(b" ")


def always_continues(link: socket.socket, over: threading.Event) -> None:
    """Announces a response again and again."""
    read_request(link)
    while not over.wait(0.05):
        link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def floods_headers(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        link.sendall(b"".join(b"x-header: %b\r\n" % (b"a" * 1000) for _ in range(64)))


def one_long_header(link: socket.socket, over: threading.Event) -> None:
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
    while not over.is_set():
        link.sendall(b"a" * 65536)


def resets(link: socket.socket, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        link.recv(1)
    raw: Any = link
    socket.socket.setsockopt(raw, socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def closes(link: socket.socket, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        link.recv(1)


def is_silent(link: socket.socket, over: threading.Event) -> None:
    over.wait(60)


def page(status: str, *headers: str) -> Behaviour:
    """Answers with the sign-in page of a network."""
    return Behaviour(says(answer(status, HTML, PAGE, *headers)))


GARBAGE = bytes(range(256)) * (5 << 12)  # 5 MiB
BEHAVIOURS: dict[str, Behaviour] = {
    "a page with status 200": page("200 OK"),
    "a page with status 404": page("404 Not Found"),
    "a redirect": Behaviour(says(answer("302 Found", b"", "location: https://127.0.0.1:1/sign-in?back=1"))),
    "status 401": page("401 Unauthorized"),
    "status 429": page("429 Too Many Requests"),
    "status 429 for an hour": page("429 Too Many Requests", "retry-after: 3600"),
    "status 500": page("500 Oops"),
    "status 503 for an hour": page("503 Busy", "retry-after: 3600"),
    "an empty body": Behaviour(says(answer("200 OK", b""))),
    "5 MB of garbage": Behaviour(says(answer("200 OK", GARBAGE))),
    "a gzip bomb": Behaviour(says(answer("200 OK", bomb(), "content-encoding: gzip"))),
    "an endless body": Behaviour(never_ends),
    "slow headers": Behaviour(drips_headers),
    "a slow body": Behaviour(drips_body),
    "a slow body without a length": Behaviour(drips_until_closed),
    "endless interim responses": Behaviour(always_continues),
    "a flood of headers": Behaviour(floods_headers),
    "one endless header": Behaviour(one_long_header),
    "not HTTP": Behaviour(says(b"\x00\xff not HTTP at all\r\n\r\n")),
    "a closed connection": Behaviour(closes, speaks_http=False),
    "a reset connection": Behaviour(resets, speaks_http=False),
    "silence": Behaviour(hangs),
    "a black hole": Behaviour(is_silent, speaks_http=False),
    "a certificate of another CA": Behaviour(says(answer("200 OK", HTML)), certificate="other"),
    "an expired certificate": Behaviour(says(answer("200 OK", HTML)), certificate="expired"),
}
