"""Servers that are not the provider, or fail in one specific manner."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificatePair

Does = "Callable[[socket.socket, threading.Event], None]"


def answer(status: str, body: bytes, *headers: str) -> bytes:
    head = (f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers)
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def refusal(status: str, code: str, *headers: str) -> bytes:
    body = json.dumps({"error": {"code": code, "message": "In these words."}}).encode()
    return answer(status, body, "content-type: application/json", *headers)


def says(content: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Sends this content for every request."""

    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(content)

    return speak


def never_ends(link: socket.socket, over: threading.Event) -> None:
    """Sends an endless body."""
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{")
    while not over.is_set():
        link.sendall(b'"a": 1, ' * 8192)


def drips(link: socket.socket, over: threading.Event) -> None:
    """Sends a body one byte at a time."""
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while not over.wait(0.05):
        link.sendall(b" ")


def hangs(link: socket.socket, over: threading.Event) -> None:
    """Accepts a connection and never responds."""
    read_request(link)
    over.wait(60)


def cuts(link: socket.socket, over: threading.Event) -> None:
    """Closes the connection in the middle of its response."""
    read_request(link)
    link.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 1000\r\n\r\n" + b'{"error": {"code": "Reso')


def read_request(link: socket.socket) -> bytes:
    """Reads a request including its body: closing with unread data would reset the connection."""
    asked = b""
    while not _is_whole(asked) and (piece := link.recv(65536)):
        asked += piece
    return asked.partition(b"\r\n\r\n")[0]


def _is_whole(asked: bytes) -> bool:
    head, end, body = asked.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@contextmanager
def serving(
    does: Callable[[socket.socket, threading.Event], None], pair: CertificatePair | None, host: str = "127.0.0.1"
) -> Iterator[int]:
    """Runs a server with this behavior, over TLS if it has a certificate; yields its port."""
    over, tls = threading.Event(), None
    if pair:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)

    def meet(link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            link.settimeout(30)
            if tls is None:
                does(link, over)
                return
            with tls.wrap_socket(link, server_side=True) as secure:
                does(secure, over)

    with socket.create_server((host, 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=_accept, args=(server, meet, over))
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            over.set()
            thread.join()


def _accept(server: socket.socket, meet: Callable[[socket.socket], None], over: threading.Event) -> None:
    threads = []
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            link, _ = server.accept()
            threads.append(threading.Thread(target=meet, args=(link,)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def forwards(login: str, seen: list[str], there: int = 0) -> Callable[[socket.socket, threading.Event], None]:
    """A proxy with authentication that forwards to the requested host or to a local port."""

    def connect(link: socket.socket, over: threading.Event) -> None:
        head = read_request(link).decode("latin-1")
        seen.append(head)
        if f"proxy-authorization: {login}".lower() not in head.lower():
            link.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        host, _, port = head.split()[1].rpartition(":")
        with socket.create_connection(("127.0.0.1", there) if there else (host, int(port)), timeout=10) as other:
            link.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(other, link, over))
            back.start()
            _pump(link, other, over)
            back.join()

    return connect


def _pump(source: socket.socket, sink: socket.socket, over: threading.Event) -> None:
    source.settimeout(0.1)
    with contextlib.suppress(OSError):
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                if not (piece := source.recv(65536)):
                    break
                sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
