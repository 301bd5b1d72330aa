"""How many nodes are how, of the whole fleet at once: counted at most every few seconds, however many people look."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.store.fleet import Count, FleetQuery
    from aks_flex_node.rp.store.store import Store

FRESH_SECONDS = 2.0
SHARE = (
    20  # a count that took a second is fresh for so many, so that looking costs a twentieth of a processor at most
)
LONGEST_FRESH = 30.0  # seconds: one slow moment of the database must not make everybody look at the past for long
OLD = 5  # times as old as fresh ones may be: such are not shown while new ones are made
MOST = 256  # lists whose length is remembered


class Counting:
    """Belongs to one event loop. How old a count is goes by a clock that nobody sets."""

    def __init__(
        self, store: Store, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._counts: tuple[float, tuple[Count, ...]] = (float("-inf"), ())
        self._fresh = FRESH_SECONDS
        self._asking: asyncio.Task[None] | None = None
        self._lengths: dict[FleetQuery, tuple[float, int]] = {}

    async def counts(self) -> tuple[Count, ...]:
        """Who comes a little late gets what there is, and new ones are made for the next."""
        age = self._clock() - self._counts[0]
        if age > self._fresh and self._asking is None:
            self._asking = asyncio.create_task(self._count())
        if age > self._fresh * OLD and self._asking:
            await asyncio.shield(self._asking)
        return self._counts[1]

    async def _count(self) -> None:
        try:
            began = self._clock()
            self._counts = (began, await self._store.fleet_counts(self._now()))
            self._fresh = min(max(FRESH_SECONDS, SHARE * (self._clock() - began)), LONGEST_FRESH)
        finally:
            self._asking = None

    async def length(self, asked: FleetQuery) -> int:
        """Of the list without regard to its order and part."""
        known = self._lengths.get(asked)
        began = self._clock()
        if known and began - known[0] < FRESH_SECONDS:
            return known[1]
        found = await self._store.count_fleet(asked, self._now())
        if len(self._lengths) >= MOST:
            self._lengths.clear()
        self._lengths[asked] = (began, found)
        return found
