"""An HTTP session with one API server, from a connection. Keys live in memory alone."""

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

    from aks_flex_node.rp.clusters.connections import Direct

WATCH_SECONDS = 300  # after which the API server ends a watch
REQUEST = httpx2.Timeout(15.0, connect=5.0)
WATCH = httpx2.Timeout(15.0, connect=5.0, read=WATCH_SECONDS + 30.0)
# A peer that vanished without a word is noticed within a minute, also by a watch that has nothing to say.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def open_session(connection: Direct) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        verify=trust(connection), trust_env=False, proxy=connection.proxy or None, socket_options=KEEPALIVE
    )
    headers = {"Accept": "application/json", "User-Agent": "aks-flex-rp"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    return httpx2.AsyncClient(
        transport=transport, base_url=connection.server, headers=headers, timeout=REQUEST, trust_env=False
    )


def trust(connection: Direct) -> ssl.SSLContext:
    """The cluster's CA and no other; and our certificate, where that is how we log in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=connection.authority)
        if connection.certificate:
            with _in_memory(connection.certificate + "\n" + connection.key) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ConfigError(
            "cluster-credentials-unusable",
            f"The certificates for {connection.server} cannot be used: {error.reason or 'they are no certificates'}.",
            "Check that the kubeconfig's CA, client certificate and key are whole and belong together.",
        ) from None
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A file for a library that takes nothing else. It is on no disk, and gone with the block."""
    file = os.memfd_create("credentials", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
