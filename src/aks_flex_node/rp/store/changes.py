"""Who waits for changes of nodes, and how each is told without holding up whoever writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

Change = tuple[str, str, int]  # cluster, node, version; version 0 when it was deleted

EVERYTHING: Change = ("", "", 0)  # something may have been missed: whoever waits looks again
DEAF: Change = ("", "", -1)  # the same, and until EVERYTHING comes nothing will be heard
BACKLOG = 10_000


class Subscription:
    """Changes from the moment it is made. One that lags is told the newest of each node, or EVERYTHING."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._pending: dict[tuple[str, str], int] = {}
        self._backlog = backlog
        self._wake = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change:
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        (cluster, node) = next(iter(self._pending))
        return cluster, node, self._pending.pop((cluster, node))

    def tell(self, change: Change) -> None:
        cluster, node, version = change
        if not cluster:
            self._pending = {("", ""): version}
        elif len(self._pending) >= self._backlog:
            self._pending = {("", ""): 0}
        elif ("", "") not in self._pending:
            self._pending.pop((cluster, node), None)
            self._pending[cluster, node] = version
        self._wake.set()

    def end(self) -> None:
        """What is pending is still given out."""
        self._ended = True
        self._wake.set()


class Broadcast:
    """All subscriptions of a store; one that nobody holds any more goes by itself."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription] = WeakSet()

    def subscribe(self) -> Subscription:
        made = Subscription()
        self._subscriptions.add(made)
        return made

    def publish(self, changes: Iterable[Change]) -> None:
        for change in changes:
            for subscription in self._subscriptions:
                subscription.tell(change)

    def end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()
