"""Sends raw bytes to a service, without an HTTP library in between."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running

PATIENCE = 60.0  # seconds: an upper limit for what takes a moment
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
MISTAKES = ("Request failed", "Rendering a page failed", "Traceback")


@dataclass(frozen=True)
class Answers:
    """All bytes received until the server closed the connection."""

    content: bytes

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in STATUS.findall(self.content)]


@dataclass(frozen=True)
class Door:
    service: Running

    def send(self, *pieces: bytes) -> Answers:
        """Sends bytes, ends the stream, and reads the response. Raises TimeoutError when the server
        does not close.
        """
        with self.connect() as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except (ConnectionError, ssl.SSLError):
                pass  # the server closed early; its response is still readable
            return Answers(rest(connection))

    def connect(self) -> ssl.SSLSocket:
        address = urlsplit(self.service.service.settings.origin)
        trust = ssl.create_default_context(cafile=self.service.room / "tls" / "ca.crt")
        plain = socket.create_connection((address.hostname or "", address.port or 0), PATIENCE)
        return trust.wrap_socket(plain, server_hostname=address.hostname)

    def judge(self, answers: Answers) -> None:
        """Checks that no response is a server error, and that the log contains no internal error."""
        assert all(200 <= status < 500 for status in answers.statuses), answers.content[:500]
        log = self.service.log
        assert not any(words in log for words in MISTAKES), log[-3000:]


def rest(connection: ssl.SSLSocket) -> bytes:
    content = b""
    try:
        while piece := connection.recv(65536):
            content += piece
    except (ConnectionError, ssl.SSLError) as error:
        if isinstance(error, TimeoutError):
            raise
    return content


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    """Returns a request with `Connection: close`."""
    length = (f"Content-Length: {len(body)}",) if body else ()
    head = "\r\n".join((f"{line} HTTP/1.1", "Host: x", "Connection: close", *headers, *length, "", ""))
    return head.encode("latin-1", "replace") + body
