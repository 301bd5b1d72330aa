"""Tests of connection limits, of clients that read no responses, and of boundary cases of requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from aks_flex_node.errors import ClusterError
from aks_flex_rp import server
from aks_flex_rp.api import connection_limits
from aks_flex_rp.store.model import AuditAction, AuditEvent
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import PLANT
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService


PATIENCE = 60.0


def open_connection(service: Running, seconds: float = PATIENCE, receive_buffer: int = 0) -> ssl.SSLSocket:
    """Opens a connection; with a small receive buffer, the service notices soon that nothing is read."""
    address = urlsplit(service.service.settings.origin)
    trust = ssl.create_default_context(cafile=service.room / "tls" / "ca.crt")
    plain = socket.socket()
    if receive_buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.settimeout(seconds)
    plain.connect((address.hostname, address.port))
    return trust.wrap_socket(plain, server_hostname=address.hostname)


def is_closed(connection: ssl.SSLSocket) -> bool:
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_connection_is_closed_when_request_headers_exceed_limit(service: Running) -> None:
    with open_connection(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        try:
            for _ in range(20 * connection_limits.LARGEST_HEAD // 4096):
                connection.sendall(b"X-Filling: " + b"x" * 4096 + b"\r\n")
        except (ConnectionError, ssl.SSLError):
            return  # closed during the request
        assert is_closed(connection)


def test_connection_is_closed_when_request_headers_never_complete(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)
    with open_connection(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        assert is_closed(connection)


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def read_response(connection: ssl.SSLSocket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        answer += connection.recv(65536)
    return answer


def test_trickle_of_empty_lines_does_not_extend_the_timeout(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.5)
    with open_connection(service) as connection:
        connection.sendall(HEALTH)
        read_response(connection)
        began = time.monotonic()
        try:
            while time.monotonic() - began < 20:
                connection.sendall(b"\r\n")
                time.sleep(0.1)
        except (ConnectionError, ssl.SSLError):
            return
        raise AssertionError("The connection stayed open for 20 s.")


def test_empty_line_before_the_next_request_is_accepted(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 1.0)
    with open_connection(service) as connection:
        for _ in range(3):
            connection.sendall(b"\r\n")
            time.sleep(0.5)
            connection.sendall(HEALTH)
            assert read_response(connection).startswith(b"HTTP/1.1 200 ")


def test_idle_connection_outlives_the_timeout_of_headers(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)
    with open_connection(service) as connection:
        for _ in range(2):
            connection.sendall(HEALTH)
            assert read_response(connection).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.6)


def test_client_that_reads_no_response_is_disconnected(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: a client that requested and never read responses held its connection without limit."""
    monkeypatch.setattr(connection_limits, "WRITE_SECONDS", 0.3)
    with open_connection(service, 30, receive_buffer=4096) as connection:
        try:
            for _ in range(10_000):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                time.sleep(0.001)
        except (ConnectionError, ssl.SSLError):
            return
    raise AssertionError("The connection stayed open.")


def test_connections_of_one_address_are_bounded(
    run_service: RunService,
) -> None:
    """Attack: one client opens connections until none is left for nodes."""
    bounds = {"perAddress": 8, "unlimitedAddresses": []}
    with run_service(connections=bounds) as service:
        opened = [open_connection(service) for _ in range(30)]
        try:
            for each in opened[-8:]:
                each.sendall(HEALTH)
                assert read_response(each).startswith(b"HTTP/1.1 200 ")
            assert all(is_closed(each) for each in opened[:22])
            assert service.log.count("connections.perAddress") == 2, "a single warning, which names it twice"
        finally:
            for each in opened:
                each.close()


def test_pipelined_request_gets_its_own_timeout(
    service: Running, admin: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "REST_SECONDS", 0.1)
    body = b'{"properties":{}}'
    path = f"{admin.path(name)}?api-version={API_VERSION}"
    headers = f"Host: x\r\nAuthorization: {admin.authorization}\r\nContent-Length: {len(body)}"
    with open_connection(service) as connection:
        both = f"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nPUT {path} HTTP/1.1\r\n{headers}\r\n\r\n"
        connection.sendall(both.encode() + body[:5])
        read_response(connection)
        time.sleep(0.5)  # five times REST_SECONDS
        connection.sendall(body[5:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 201 ")


def test_node_name_taken_in_cluster_returns_conflict(
    service: Running, admin: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(*_: object) -> None:
        raise ClusterError("node-name-taken", "The cluster has such a Node.", "Choose another name.")

    monkeypatch.setattr(service.clusters, "mint", taken)

    admin.put(name, url=True).assert_refused(409, "Conflict")
    assert admin.get(name).status == 404


def test_node_is_not_stored_when_cluster_is_removed_during_put(
    service: Running, admin: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(key: str) -> bool:
        return False

    monkeypatch.setattr(service.clusters, "is_there", gone)

    admin.put(name).assert_refused(404, "ParentResourceNotFound")
    assert service.call(service.store.node(PLANT.key, name)) is None


def test_sweep_deletes_expired_audit_events(service: Running, name: str) -> None:
    store, resource = service.store, f"/old/{name}"
    now = time.time()
    service.call(
        store.record(
            AuditEvent(now - 400 * 86400, "me", AuditAction("old"), resource),
            AuditEvent(now, "me", AuditAction("new"), resource),
        )
    )

    service.call(service.service._sweep())

    assert [each.what for each in service.call(store.audit(resource=resource))] == ["new"]


SOON = 40.0  # an upper limit for what takes milliseconds


MOST_REQUESTS = 300_000  # more than fit into all buffers, and so few that the test fails before the memory is full


def test_client_that_reads_nothing_does_not_outlive_the_service(
    run_service: RunService, monkeypatch: pytest.MonkeyPatch
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
    with open_connection(service, 2, receive_buffer=4096) as connection:
        with contextlib.suppress(TimeoutError):
            for _ in range(MOST_REQUESTS // 100):
                connection.sendall(HEALTH * 100)
            pytest.fail("The service reads requests whose responses are not read.")
        yield


def request_tasks(service: Running) -> list[str]:
    """Returns the requests that the service still handles, also after the end of its loop."""
    names = [str(task.get_coro()) for task in asyncio.all_tasks(service.loop)]
    return [name for name in names if "run_asgi" in name]
