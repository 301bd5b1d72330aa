"""A client that sends requests and reads no responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from aks_flex_rp import server
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.service.rp.api.service_harness import Running

SOON = 40.0  # an upper limit for what takes milliseconds


MOST_REQUESTS = 300_000  # more than fit into all buffers, and so few that the test fails before the memory is full


def test_client_that_reads_nothing_does_not_outlive_the_service(
    run_service: Callable[..., AbstractContextManager[Running]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 1)
    with contextlib.ExitStack() as stack:
        with run_service() as service:
            stack.enter_context(unread_requests(service))
            until(lambda: len(request_tasks(service)) == 1, "a response waits for its client", SOON)
        assert request_tasks(service) == []


@contextlib.contextmanager
def unread_requests(service: Running) -> Iterator[None]:
    """Sends requests in one connection until the service stops reading them, and keeps it for the block."""
    address = urlsplit(service.service.settings.origin)
    trusted = ssl.create_default_context(cafile=str(service.room / "tls" / "ca.crt"))
    request = f"GET /healthz HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((address.hostname or "", address.port or 0))
    with trusted.wrap_socket(plain, server_hostname=address.hostname) as connection:
        connection.settimeout(2)
        with contextlib.suppress(TimeoutError):
            for _ in range(MOST_REQUESTS // 100):
                connection.sendall(request * 100)
            pytest.fail("The service reads requests whose responses are not read.")
        yield


def request_tasks(service: Running) -> list[str]:
    """Returns the requests that the service still handles, also after the end of its loop."""
    names = [str(task.get_coro()) for task in asyncio.all_tasks(service.loop)]
    return [name for name in names if "run_asgi" in name]
