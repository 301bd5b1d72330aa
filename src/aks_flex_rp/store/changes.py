"""Change notifications: subscriptions to changes of nodes that never block the writer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

BACKLOG = 10_000


@dataclass(frozen=True)
class NodeWritten:
    cluster: str
    node: str
    version: int


@dataclass(frozen=True)
class NodeDeleted:
    cluster: str
    node: str


@dataclass(frozen=True)
class Resync:
    """Changes may have been missed: read everything again."""


@dataclass(frozen=True)
class Disconnected:
    """The connection is lost: changes may have been missed, and none follow until Resync."""


NodeChange = NodeWritten | NodeDeleted
StoreChange = NodeChange | Resync | Disconnected


class ChangeSubscription:
    """Receives changes from its creation on. A slow consumer gets only the newest change of each node, or Resync."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._pending: dict[tuple[str, str], NodeChange] = {}
        self._missed: Resync | Disconnected | None = None  # replaces all pending changes
        self._backlog = backlog
        self._wake = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> ChangeSubscription:
        return self

    async def __anext__(self) -> StoreChange:
        while not (self._pending or self._missed):
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        if missed := self._missed:
            self._missed = None
            return missed
        return self._pending.pop(next(iter(self._pending)))

    def notify(self, change: StoreChange) -> None:
        match change:
            case Resync() | Disconnected():
                self._miss(change)
            case NodeWritten() | NodeDeleted() if len(self._pending) >= self._backlog:
                self._miss(Resync())
            case NodeWritten() | NodeDeleted() if not self._missed:
                self._pending.pop((change.cluster, change.node), None)
                self._pending[change.cluster, change.node] = change
        self._wake.set()

    def _miss(self, change: Resync | Disconnected) -> None:
        self._pending.clear()
        self._missed = change

    def end(self) -> None:
        """Ends the subscription after the pending changes."""
        self._ended = True
        self._wake.set()


class ChangeBroadcast:
    """All subscriptions of a store. Unreferenced subscriptions are removed automatically."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[ChangeSubscription] = WeakSet()

    def subscribe(self) -> ChangeSubscription:
        subscription = ChangeSubscription()
        self._subscriptions.add(subscription)
        return subscription

    def publish(self, changes: Iterable[StoreChange]) -> None:
        for change in changes:
            for subscription in self._subscriptions:
                subscription.notify(change)

    def end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()
