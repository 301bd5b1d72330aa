"""The HTTP session with an API server: TLS, credentials, and the detection of a peer that is gone."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2

from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.clusters.connections import DirectConnection

REQUEST_TIMEOUT = httpx2.Timeout(15.0, connect=5.0)
# Detects within a minute that the peer is gone, also on an idle watch.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def open_session(connection: DirectConnection) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        verify=client_ssl_context(connection),
        trust_env=False,
        proxy=connection.proxy or None,
        socket_options=KEEPALIVE,
    )
    # A small compressed response could become a very large one.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "aks-flex-rp"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    return httpx2.AsyncClient(
        transport=transport, base_url=connection.server, headers=headers, timeout=REQUEST_TIMEOUT, trust_env=False
    )


def client_ssl_context(connection: DirectConnection) -> ssl.SSLContext:
    """Creates a TLS context that trusts only the cluster's CA, with the client certificate if there is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=connection.authority)
        if connection.certificate:
            with _in_memory(connection.certificate + "\n" + connection.key) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ConfigError(
            "cluster-credentials-invalid",
            f"The certificates for {connection.server} are invalid: {error.reason or 'not PEM certificates'}.",
            "Check that the CA, client certificate and key of the kubeconfig are complete and belong together.",
        ) from None
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Yields the path of an in-memory file, for a library that only accepts files. Nothing is written to disk."""
    file = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
