"""Small HTTP servers on loopback, in a thread of the tests."""

from __future__ import annotations

import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificatePair


class Handler(BaseHTTPRequestHandler):
    def respond(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


class Listening(ThreadingHTTPServer):
    daemon_threads = True  # a client may keep its connection after the server has ended
    request_queue_size = 128  # the default of five rejects concurrent clients on a busy machine

    def handle_error(self, *_: Any) -> None:
        """Ignores errors of clients that disconnected or do not trust the certificate."""


@contextmanager
def listening(
    handler: Callable[..., BaseHTTPRequestHandler], pair: CertificatePair | None = None, port: int = 0
) -> Iterator[str]:
    """Yields the URL of a running server, with TLS if it has a certificate."""
    server = Listening(("127.0.0.1", port), handler)
    if pair:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'https://localhost' if pair else 'http://127.0.0.1'}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
