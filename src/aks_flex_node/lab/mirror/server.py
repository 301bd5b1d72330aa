"""The sockets: a thread for each connection, which does its own TLS handshake, so that nobody waits for another's."""

from __future__ import annotations

import socket
import socketserver
import ssl
import sys
import traceback
from functools import partial
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.errors import HostError, UsageError
from aks_flex_node.lab.mirror.exchange import Exchange, Site, log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HANDSHAKE_SECONDS = 20.0


class MirrorServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], site: Site, tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.tls = tls
        handler: Callable[..., Exchange] = partial(Exchange, site)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer looks its own name up here, which takes many seconds where no DNS answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(HANDSHAKE_SECONDS)
        with self.tls.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)
            say_goodbye(secure)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that leaves, or does not trust us, is worth a line; a mistake of ours, a traceback."""
        error = sys.exc_info()[1]
        if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            log(f"connection from {client_address[0]} ended: {error}")
        else:
            traceback.print_exc()


def say_goodbye(connection: ssl.SSLSocket) -> None:
    """Tell the client that the end is meant, without waiting for its answer."""
    if connection.fileno() < 0:
        return
    try:
        connection.settimeout(0)
        connection.unwrap()
    except (OSError, ValueError):
        return


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM+AES128:ECDHE+AESGCM:ECDHE+CHACHA20")
    # The kernel encrypts where Python (3.12) and the kernel can; elsewhere this changes nothing.
    context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise UsageError(
            "certificate-unusable", f"The certificate {cert} with the key {key} cannot be used: {error}."
        ) from error
    return context


def listen(address: tuple[str, int], site: Site, tls: ssl.SSLContext | None) -> MirrorServer:
    try:
        return MirrorServer(address, site, tls)
    except OSError as error:
        host, port = address
        raise HostError(
            "address-taken",
            f"The mirror cannot listen on {host} port {port}: {error.strerror}.",
            "See who has it with `ss -ltnp`, or run `aks-flex-lab down` for a lab that was left behind.",
        ) from error
