"""Ways to ask a part whether it is ready. Each is one short question; none waits."""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.lab.kernel.namespaces import Namespace


class Connection(http.client.HTTPSConnection):
    """HTTPS to a server inside a namespace."""

    def __init__(self, namespace: Namespace, address: str, port: int, name: str, trust: ssl.SSLContext) -> None:
        super().__init__(name, port, timeout=10, context=trust)
        self._where = (namespace, address, port)
        self._trust = trust

    def connect(self) -> None:
        namespace, address, port = self._where
        plain: socket.socket = namespace.connect(address, port)
        try:
            self.sock = self._trust.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def accepts(namespace: Namespace, address: str, port: int) -> Callable[[], bool]:
    """Whether something listens."""

    def ask() -> bool:
        try:
            namespace.connect(address, port, 1).close()
        except OSError:
            return False
        return True

    return ask


def answers(namespace: Namespace, address: str, port: int, path: str, authority: Path | None) -> Callable[[], bool]:
    """Whether a GET over TLS is answered with 200. Without an authority the certificate is not looked at."""

    def ask() -> bool:
        trust = trusting(authority) if authority else ssl._create_unverified_context()  # noqa: S323 - own loopback
        with closing(Connection(namespace, address, port, address, trust)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    return ask
