"""Tests of the query parameters of the fleet page, and of its bars."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.dashboard.fleet_page import FleetCounter, FleetLinks, newest_first, parse_fleet_query, segments
from aks_flex_rp.dashboard.page_request import local_path
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.store.fleet import FleetCount, FleetQuery, FleetState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.store.base import Store


SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
OSLO = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "oslo"), 1)
ROME = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "rome"), 2)
NEW = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "new"))


def test_empty_fleet_query_selects_first_page_of_all_clusters() -> None:
    assert parse_fleet_query({}, [OSLO, ROME, NEW]) == FleetQuery((1, 2))


def test_all_fleet_query_parameters_are_parsed() -> None:
    words = {"cluster": OSLO.id.key.upper(), "search": "hall", "state": "NotReady", "version": "1.34.4"}
    words |= {"behind": "yes", "trouble": "yes", "sort": "seen", "order": "desc", "page": "3"}
    assert parse_fleet_query(words, [OSLO, ROME]) == FleetQuery(
        (1,),
        "hall",
        FleetState.NOT_READY,
        "1.34.4",
        trouble=True,
        behind=True,
        sort="seen",
        descending=True,
        offset=100,
    )


@pytest.mark.parametrize(
    "words",
    [{"state": "Fine"}, {"sort": "key; DROP TABLE fleet"}, {"page": "-1"}, {"page": "0"}, {"page": "9" * 40}],
)
def test_invalid_fleet_query_parameters_are_ignored(words: Mapping[str, str]) -> None:
    assert parse_fleet_query(words, [OSLO, ROME]) == FleetQuery((1, 2))


def test_fleet_query_for_inaccessible_cluster_selects_nothing() -> None:
    assert parse_fleet_query({"cluster": ROME.id.key}, [OSLO]).cluster_numbers == ()


def test_fleet_link_keeps_query_and_resets_page() -> None:
    link = FleetLinks("/", {"search": "a b&c", "page": "4", "state": "Ready"}, "page")
    assert link(state="NotReporting") == "/?search=a+b%26c&state=NotReporting"
    assert link(page=2) == "/?search=a+b%26c&state=Ready&page=2"
    assert FleetLinks("/", {}, "page")(state="") == "/"


def test_sorting_by_current_column_reverses_order() -> None:
    assert FleetLinks("/", {}, "page").sort("name") == "/?sort=name&order=desc"
    assert FleetLinks("/", {"sort": "seen", "order": "desc"}, "page").sort("seen") == "/?sort=seen"
    assert FleetLinks("/", {"sort": "seen"}, "page").sort("state") == "/?sort=state"


def test_bar_segments_fill_bar_and_small_ones_remain_visible() -> None:
    parts = segments([("a", "A", 99_999), ("b", "B", 0), ("c", "C", 1)])
    assert [each.name for each in parts] == ["a", "c"]
    assert parts[-1].width >= 0.9
    assert parts[-1].start + parts[-1].width == pytest.approx(100, abs=0.01)
    assert segments([]) == []


@pytest.mark.parametrize("path", ["/", "/?search=a", "/ui/nodes/a/b/c/d", "/ui/audit?who=//x"])
def test_dashboard_path_is_allowed_as_sign_in_redirect(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/ui//evil.example",
        "/ui/\\\\evil.example",
        "/ui/\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "ui/audit",
        "/metrics",
        "",
        "/ui/" + "a" * 3000,
    ],
)
def test_other_paths_are_replaced_by_root_after_sign_in(path: str) -> None:
    assert local_path(path) == "/"


def test_malformed_versions_do_not_break_version_sorting() -> None:
    odd = ["1.34.4", "1.35.0", "\u00b2.1", "\u0661.2", "", "x" * 256, "9" * 256, "-1.+2"]
    assert newest_first(odd)[:3] == ["9" * 256, "1.35.0", "1.34.4"]


LIST = FleetQuery((1,))


@dataclass
class Counted:
    """A counted store, on a machine with a monotonic clock and a wall clock that can be set."""

    takes: float = 0.0
    now: float = 1_000_000.0
    clock: float = 100.0
    nodes: int = 0
    asked: list[float] = field(default_factory=list)

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        self.asked.append(now)
        self.passes(self.takes)
        self.nodes += 1
        return (FleetCount(1, FleetState.READY, "1.34.4", behind=False, trouble=False, nodes=self.nodes),)

    async def count_fleet(self, _: FleetQuery, now: float) -> int:
        self.asked.append(now)
        self.nodes += 1
        return self.nodes

    def passes(self, seconds: float) -> None:
        self.now, self.clock = self.now + seconds, self.clock + seconds

    def counting(self) -> FleetCounter:
        return FleetCounter(cast("Store", self), lambda: self.now, lambda: self.clock)


async def shown(counting: FleetCounter) -> int:
    found = sum(each.nodes for each in await counting.counts())
    await asyncio.sleep(0)  # lets the refresh for the next call complete
    return found


async def test_fleet_counts_are_cached_for_concurrent_requests() -> None:
    store = Counted()
    counting = store.counting()
    assert [await shown(counting) for _ in range(5)] == [1, 1, 1, 1, 1]
    store.passes(3)
    assert [await shown(counting) for _ in range(3)] == [1, 2, 2]


async def test_slow_fleet_count_does_not_extend_cache_for_long() -> None:
    store = Counted(takes=60.0)
    counting = store.counting()
    await shown(counting)
    store.takes = 0.0
    store.passes(31)
    await shown(counting)
    assert await shown(counting) == 2


async def test_fleet_counts_are_refreshed_after_clock_moves_backwards() -> None:
    store = Counted()
    counting = store.counting()
    await shown(counting)
    assert await counting.length(LIST) == 2
    store.now -= 3600
    store.passes(20)
    assert await shown(counting) == 3
    assert await counting.length(LIST) == 4
    assert store.asked[-1] == store.now
