"""Tests of the age of the counts on a page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from aks_flex_rp.dashboard.fleet_page import FleetCounter
from aks_flex_rp.store.fleet import FleetCount, FleetQuery, FleetState

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store

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
