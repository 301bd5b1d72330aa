"""Tests of the time that a connection attempt may take."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from urllib3 import PoolManager, Timeout

from aks_flex_node.bounded_http.connections import bound
from aks_flex_node.bounded_http.limits import RequestTimeout, time_limit

LIMIT, CONNECT = 30.0, 10.0


class Clock:
    """The time of this module's tests, which only connection attempts let pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[str] = []

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()

    class SilentSocket(socket.socket):
        def connect(self, address: Any) -> None:
            found.tried.append(address[0])
            found.now += self.gettimeout() or 0.0
            raise TimeoutError("timed out")

    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{number}", 443)) for number in range(50)]
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *_, **__: (
            addresses if host == "api.example" else [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 443))]
        ),
    )
    monkeypatch.setattr(socket, "socket", SilentSocket)
    monkeypatch.setattr(time, "monotonic", found.monotonic)
    return found


def test_name_with_many_dead_addresses_does_not_exceed_the_limit(clock: Clock) -> None:
    pool = bound(PoolManager(timeout=Timeout(connect=CONNECT, read=1.0)))
    with pytest.raises(RequestTimeout), time_limit(LIMIT):
        pool.request("GET", "http://api.example/", retries=False)
    assert clock.now <= LIMIT
    assert clock.tried == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
