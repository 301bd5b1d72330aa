"""Tests that a request whose time is over leaves no open socket."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest
from urllib3 import PoolManager, Timeout

from aks_flex_node.bounded_http.connections import bound
from aks_flex_node.bounded_http.limits import RequestTimeout, response_socket, time_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import BaseHTTPResponse

HEADS = {
    "connection is kept": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
    "connection ends with the response": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
}


@pytest.fixture(params=HEADS.values(), ids=[*HEADS])
def silent_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Sends the head of a response, and then nothing until the client closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(request.param)
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join()


def test_interrupted_response_leaves_no_open_socket(silent_server: str) -> None:
    pool = bound(PoolManager(timeout=Timeout(60), retries=False))
    found: list[BaseHTTPResponse] = []

    def ask() -> None:
        with time_limit(0.3):
            found.append(pool.request("GET", silent_server, preload_content=False))
            threading.Event().wait(1)  # the caller does not read and close the response

    with pytest.raises(RequestTimeout):
        ask()

    assert response_socket(found[0]).fileno() == -1
    pool.clear()
