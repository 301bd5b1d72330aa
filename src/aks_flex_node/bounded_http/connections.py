"""Connections of urllib3 that `time_limit` can interrupt. Import this module late: urllib3 is slow to import."""

from __future__ import annotations

import socket
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING, Any, TypeVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError
from urllib3.util.connection import allowed_gai_family

from aks_flex_node.bounded_http.limits import seconds_to_connect, watch, with_socket

if TYPE_CHECKING:
    from urllib3 import PoolManager
    from urllib3.response import HTTPResponse

Manager = TypeVar("Manager", bound="PoolManager")


class BoundedConnection(HTTPConnection):
    """The part that connections with and without TLS have in common."""

    def connect(self) -> None:
        watch(self)
        super().connect()

    def _new_conn(self) -> socket.socket:
        """Connects to the first address of the server that responds, within the time that is left.

        urllib3 would give each address the whole time, and a name can have many.
        """
        name, seconds = self._dns_host, self.timeout
        failure: HTTPError | None = None
        try:
            for address in _addresses(name, self.port):
                self._dns_host = address
                self.timeout = seconds_to_connect(seconds if isinstance(seconds, int | float) else None)
                try:
                    return super()._new_conn()
                except (ConnectTimeoutError, NewConnectionError) as error:
                    failure = error
        finally:
            self._dns_host, self.timeout = name, seconds
        if failure:
            raise failure
        return super()._new_conn()  # names why the name was not resolved

    def getresponse(self) -> HTTPResponse:  # type: ignore[override] # as in urllib3
        watch(self)
        link = self.sock  # a response after which the server closes the connection takes the socket over
        watch(link)
        return with_socket(super().getresponse(), link)


def _addresses(name: str, port: int) -> list[str]:
    """Returns the addresses of a name in the order of preference; empty if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name.strip("[]"), port, allowed_gai_family(), socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class BoundedHTTPSConnection(BoundedConnection, HTTPSConnection):
    pass


class BoundedHTTPPool(HTTPConnectionPool):
    ConnectionCls = BoundedConnection


class BoundedHTTPSPool(HTTPSConnectionPool):
    ConnectionCls = BoundedHTTPSConnection


BOUNDED_POOLS: dict[str, Any] = {"http": BoundedHTTPPool, "https": BoundedHTTPSPool}


def bound(manager: Manager) -> Manager:
    """Makes the connections of a manager subject to `time_limit`."""
    manager.pool_classes_by_scheme = {**BOUNDED_POOLS}
    return manager


MAX_TEXT = 120  # of a server, in a message


def protocol_cause(error: ProtocolError) -> str:
    """Returns why a response could not be read, without the names of exceptions."""
    inner = next((each for each in error.args if isinstance(each, BaseException)), None)
    if isinstance(inner, HTTPException) and not isinstance(inner, RemoteDisconnected | IncompleteRead):
        text = "".join(each if each.isprintable() else "?" for each in str(inner)[:MAX_TEXT])
        return f"the response is not valid HTTP ({text.strip()})"
    return "the connection was interrupted"
