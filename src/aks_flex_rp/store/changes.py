"""Change notifications: subscriptions to changes of nodes that never block the writer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

NodeChange = tuple[str, str, int]  # cluster, node, version; version 0 when it was deleted

RESYNC: NodeChange = ("", "", 0)  # something may have been missed: whoever waits looks again
DISCONNECTED: NodeChange = ("", "", -1)  # the same, and until EVERYTHING comes nothing will be heard
BACKLOG = 10_000


class ChangeSubscription:
    """Changes from the moment it is made. One that lags is told the newest of each node, or EVERYTHING."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._pending: dict[tuple[str, str], int] = {}
        self._backlog = backlog
        self._wake = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> ChangeSubscription:
        return self

    async def __anext__(self) -> NodeChange:
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        (cluster, node) = next(iter(self._pending))
        return cluster, node, self._pending.pop((cluster, node))

    def notify(self, change: NodeChange) -> None:
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


class ChangeBroadcast:
    """All subscriptions of a store; one that nobody holds any more goes by itself."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[ChangeSubscription] = WeakSet()

    def subscribe(self) -> ChangeSubscription:
        made = ChangeSubscription()
        self._subscriptions.add(made)
        return made

    def publish(self, changes: Iterable[NodeChange]) -> None:
        for change in changes:
            for subscription in self._subscriptions:
                subscription.notify(change)

    def end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()
