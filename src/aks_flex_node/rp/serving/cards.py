"""What a poll needs to know of a node, in memory; who waits for a change of it; and when it was last heard of.

A hundred thousand nodes poll all day, and next to never is there anything new. So a poll is answered from a card,
which the store's changes keep true, also those that came to another replica; and that a node was heard of is written
for many nodes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from aks_flex_node.rp.clusters.watches import keep_doing
from aks_flex_node.rp.nodes.accesses import owed
from aks_flex_node.rp.store.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_node.rp.store.store import Store

Place = tuple[str, str]  # the cluster's key and the node's
MOST = 500_000  # cards
FLUSH_SECONDS = 5.0
WRITE_SECONDS = 60.0  # in which a node that polls on and on is written once: half of after how long it is silent
TOGETHER = 500  # nodes that were heard of, in one write

log = logging.getLogger(__name__)


class Heard(NamedTuple):
    moment: float
    written: float  # the moment that is in the store, or on its way there


class Card(NamedTuple):
    etag: str  # empty when there is no such node
    identity: str  # whose token speaks for it, also when it is gone
    owed: str | None = None  # see `accesses.owed`


class Cards:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._cards: dict[Place, Card] = {}
        self._waiting: dict[Place, set[asyncio.Future[None]]] = {}
        self._heard: dict[Place, Heard] = {}
        self._due: dict[Place, float] = {}  # to be written next
        self._reading: dict[Place, object] = {}  # nodes that are being read, and have not changed since that began
        self._deaf = False  # while changes elsewhere are not heard, nothing is kept
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = asyncio.Event()

    @property
    def held(self) -> int:
        return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        changes = self._store.changes()
        flushing = keep_doing("sightings", self.flush, FLUSH_SECONDS)
        self._tasks = [asyncio.create_task(self._follow(changes)), asyncio.create_task(flushing)]

    async def stop(self) -> None:
        self.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._due |= {place: heard.moment for place, heard in self._heard.items() if heard.moment > heard.written}
        with suppress(Unavailable):
            await self.flush()

    def release(self) -> None:
        """Let everybody who waits go, and nobody wait from now on."""
        self.closing.set()
        for place in list(self._waiting):
            self._wake(place)

    def at_hand(self, place: Place) -> Card | None:
        return self._cards.get(place)

    async def card(self, place: Place) -> Card:
        """From the store when it is not at hand; once more when the node changed while it was read."""
        while (found := self._cards.get(place)) is None:
            reading = self._reading.setdefault(place, object())
            try:
                found = await self._look_up(place)
                current = self._reading.get(place) is reading
            finally:
                if self._reading.get(place) is reading:
                    del self._reading[place]
            if current:
                self._keep(place, found)
                return found
        return found

    async def _look_up(self, place: Place) -> Card:
        node = await self._store.node(*place)
        return (
            Card(node.etag, node.identity, owed(node))
            if node
            else Card("", (await self._store.trace(*place)).identity)
        )

    def _keep(self, place: Place, card: Card) -> None:
        if self._deaf or not (card.etag or card.identity):
            return  # what never was there is not kept: whoever makes names up must not fill the memory
        if len(self._cards) >= MOST:
            del self._cards[next(iter(self._cards))]
        self._cards[place] = card

    async def changed(self, place: Place, etag: str, seconds: float) -> bool:
        """Wait until a node's etag is another one; False when it still is the same after that time, or at the end."""
        end = time.monotonic() + seconds
        while (await self.card(place)).etag == etag:
            left = end - time.monotonic()
            if left <= 0 or self.closing.is_set():
                return False
            await self._wait(place, left)
        return True

    async def _wait(self, place: Place, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(place, set()).add(future)
        timer = loop.call_later(seconds, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            waiting = self._waiting.get(place)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[place]

    def _wake(self, place: Place) -> None:
        for future in self._waiting.get(place, ()):
            _finish(future)

    # what a node's polls tell
    def saw(self, cluster: str, node: str, moment: float) -> None:
        place = (cluster, node)
        known = self._heard.get(place)
        if known is not None and moment - known.written < WRITE_SECONDS:
            self._heard[place] = Heard(moment, known.written)
        else:
            self._heard[place] = Heard(moment, moment)
            self._due[place] = moment

    def heard(self, cluster: str, node: str) -> float:
        known = self._heard.get((cluster, node))
        return known.moment if known else 0.0

    async def flush(self) -> None:
        """Some at a time: those who poll meanwhile are to notice nothing."""
        due, self._due = self._due, {}
        moments = [(*place, moment) for place, moment in due.items()]
        try:
            for first in range(0, len(moments), TOGETHER):
                await self._store.seen(moments[first : first + TOGETHER])
        except Unavailable:
            self._due = {**due, **self._due}
            raise

    async def _follow(self, changes: AsyncIterator[tuple[str, str, int]]) -> None:
        async for cluster, node, version in changes:
            if not cluster:
                self._deaf = version < 0
                self._cards.clear()
                self._reading.clear()
                for place in list(self._waiting):
                    self._wake(place)
                continue
            if not version:
                self._heard.pop((cluster, node), None)
            self._cards.pop((cluster, node), None)
            self._reading.pop((cluster, node), None)
            self._wake((cluster, node))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
