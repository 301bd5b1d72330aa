"""Tests of the bounds on connections."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.api.connection_limits import SCANNED, ConnectionLimiter
from aks_flex_rp.auth.auth_settings import ConnectionSettings
from aks_flex_rp.counted_events import site_of

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeConnection:
    def __init__(self, *, waiting: bool = True) -> None:
        self.is_waiting = waiting
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def limiter(count: Callable[[str], None] = lambda _: None, **settings: Any) -> ConnectionLimiter:
    return ConnectionLimiter(ConnectionSettings.model_validate({"perAddress": 4, **settings}), count)


def test_flood_of_one_address_keeps_only_its_newest_connections() -> None:
    """An attacker opens connections without end."""
    outcomes: list[str] = []
    limits = limiter(outcomes.append)
    opened = [FakeConnection() for _ in range(1000)]

    assert all(limits.admit(each, "203.0.113.7") for each in opened)

    assert [each.dropped for each in opened] == [True] * 996 + [False] * 4
    assert len(limits) == 4
    assert outcomes == ["closed"] * 996


def test_attacker_cannot_close_connection_that_serves_a_request() -> None:
    limits = limiter()
    held = [FakeConnection(waiting=False) for _ in range(3)]
    flood = [FakeConnection() for _ in range(50)]
    for each in (*held, *flood):
        limits.admit(each, "203.0.113.7")

    assert not any(each.dropped for each in held)


def test_connection_is_refused_when_all_others_serve_requests(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[str] = []
    limits = limiter(outcomes.append)
    for _ in range(4):
        assert limits.admit(FakeConnection(waiting=False), "203.0.113.7")

    with caplog.at_level(logging.WARNING):
        refused = [limits.admit(FakeConnection(), "203.0.113.7") for _ in range(3)]

    assert refused == [False] * 3
    assert outcomes == ["refused"] * 3
    assert limits.admit(FakeConnection(), "203.0.113.8")
    assert len(caplog.records) == 1, "one warning a minute"
    for word in ("203.0.113.7 has 4 connections", "connections.perAddress", "connections.unlimitedAddresses"):
        assert word in caplog.text


def test_search_continues_where_the_last_one_ended() -> None:
    limits = limiter(perAddress=2 * SCANNED)
    idle = FakeConnection()
    for _ in range(2 * SCANNED - 1):
        limits.admit(FakeConnection(waiting=False), "203.0.113.7")
    limits.admit(idle, "203.0.113.7")

    assert not limits.admit(FakeConnection(), "203.0.113.7")
    assert limits.admit(FakeConnection(), "203.0.113.7")
    assert idle.dropped


def test_attacker_with_a_network_of_ipv6_counts_as_one_client() -> None:
    limits = limiter()
    for number in range(1000):
        limits.admit(FakeConnection(), f"2001:db8::{number:x}")

    assert len(limits) == 4
    assert limits.admit(FakeConnection(), "2001:db8:0:1::1")
    assert len(limits) == 5


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.9.0.7", "::ffff:10.9.0.7"])
def test_trusted_proxy_has_no_bound_of_its_own(address: str) -> None:
    limits = limiter(unlimitedAddresses=["127.0.0.0/8", "::1", "10.9.0.0/16"])

    assert all(limits.admit(FakeConnection(waiting=False), address) for _ in range(100))


def test_all_connections_together_are_bounded() -> None:
    limits = limiter(total=16)
    opened = [FakeConnection() for _ in range(20)]
    for number, each in enumerate(opened):
        assert limits.admit(each, f"203.0.113.{number}")

    assert len(limits) == 16
    assert [each.dropped for each in opened] == [True] * 4 + [False] * 16


def test_released_connections_leave_nothing_behind() -> None:
    limits = limiter()
    for _ in range(10):
        connection = FakeConnection(waiting=False)
        assert limits.admit(connection, "203.0.113.7")
        limits.release(connection)
        limits.release(connection)

    assert len(limits) == 0


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("/run/socket", ""),
    ],
)
def test_site_of_address(address: str, site: str) -> None:
    assert site_of(address) == site
