"""Tests of what the benchmark of AKS pools reads from a watch, an access log and a process."""

from __future__ import annotations

from typing import Any

from bench.aks_pool.__main__ import summary
from bench.aks_pool.idle import count_requests, parse_memory
from bench.aks_pool.node_events import NodeEvent, deleted_at, parse_event, ready_at

EVENTS = [
    NodeEvent(1.0, "ADDED", "1.35.4", True),
    NodeEvent(2.0, "DELETED", "1.35.4", True),
    NodeEvent(3.0, "ADDED", "1.36.3", False),
    NodeEvent(4.0, "MODIFIED", "1.36.3", True),
    NodeEvent(5.0, "MODIFIED", "1.36.3", True),
]
LOG = """INFO:     198.18.10.10:1 - "GET /subscriptions/s/machines/m?api-version=1 HTTP/1.1" 200 OK
INFO:     198.18.10.10:2 - "POST /tenant/oauth2/v2.0/token HTTP/1.1" 200 OK
INFO:     198.18.10.11:3 - "GET /subscriptions/s HTTP/1.1" 200 OK
INFO:     Application startup complete.
"""


def test_upgrade_is_measured_from_the_deletion_to_ready() -> None:
    assert (deleted_at(EVENTS), ready_at(EVENTS, "1.36.3")) == (2.0, 4.0)
    assert (deleted_at(EVENTS[:1]), ready_at(EVENTS[:3], "1.36.3")) == (None, None)


def test_event_of_a_node_without_status_is_not_ready() -> None:
    assert parse_event({"type": "ADDED", "object": {}}, 7.0) == NodeEvent(7.0, "ADDED", "", False)


def test_requests_are_counted_by_machine_and_kind() -> None:
    assert count_requests(LOG.splitlines(), "198.18.10.10") == {"arm": 1, "token": 1}
    assert count_requests(LOG.splitlines(), "198.18.10.1") == {"arm": 0, "token": 0}


def test_memory_of_a_daemon_is_read_in_mebibytes() -> None:
    text = "Rss:               34816 kB\nPss:               24064 kB\nPss_Dirty: 1 kB\nThreads:\t4\n"
    assert parse_memory(text) == {"rss_mib": 34.0, "pss_mib": 23.5, "threads": 4}


def test_ratios_are_those_of_each_round() -> None:
    def one(pool: float, provider: float) -> dict[str, dict[str, Any]]:
        keys = ("join", "join_returns", "upgrade", "upgrade_ready", "rss_mib", "pss_mib", "upgraded_rss_mib")
        sides = {"pool": pool, "provider": provider}
        return {
            side: {"requests_a_minute": {"arm": 1}, **dict.fromkeys(keys, value)} for side, value in sides.items()
        }

    found = summary([one(2, 1), one(3, 4), one(9, 9)])
    assert found["ratio"]["join"] == {"median": 1.0, "min": 0.75, "max": 2.0}
    assert found["median"]["pool"]["join"] == 3
    assert found["requests_a_minute"]["provider"] == {"arm": 1}
