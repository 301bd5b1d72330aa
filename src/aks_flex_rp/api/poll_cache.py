"""Poll state of nodes in memory: etag and identity of each node, waiting long polls, and last-seen times.

A hundred thousand nodes poll continuously and almost nothing changes, so polls are answered from this cache. The
store's change notifications invalidate it, also for writes of other replicas. Last-seen times are written in batches.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from aks_flex_rp.bounded_memory import BoundedCache
from aks_flex_rp.clusters.informer import run_periodically
from aks_flex_rp.node_keys import NodeKeys
from aks_flex_rp.nodes.join_rules import granted_identity
from aks_flex_rp.store.changes import Disconnected, NodeDeleted, NodeWritten, Resync
from aks_flex_rp.store.model import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from aks_flex_rp.callers import NodeRef
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.changes import StoreChange

MAX_CACHED = 500_000  # entries
FLUSH_SECONDS = 5.0
WRITE_SECONDS = (
    60.0  # a polling node is written once in this time, which is half of the time after which it counts as silent
)
NODES_PER_WRITE = 500  # nodes per write of last-seen times
READS_AT_ONCE = 100  # held polls that read their nodes at the same time, when all of them must
READ_PAUSE = 0.01  # seconds
RELEASED_PER_SECOND = 100.0  # held polls that a stopping replica ends, or more if there are many
RELEASE_PAUSE = 0.05  # seconds

NO_KEYS = NodeKeys()  # shared by all nodes without one

log = logging.getLogger(__name__)


class LastSeen(NamedTuple):
    moment: float
    written: float  # the time that is stored, or is about to be


class PollState(NamedTuple):
    etag: str  # empty if the node does not exist
    identity: str  # the identity that may act as the node, also after its deletion
    granted_identity: str | None = None  # see `accesses.owed`
    machine: str = ""  # ID of the machine on which the node lives; empty if unknown
    owned: frozenset[str] = frozenset()  # identities that have signed in as this node, and belong to it
    keys: NodeKeys = NO_KEYS


class PollCache:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._states: BoundedCache[NodeRef, PollState] = BoundedCache(MAX_CACHED)
        self._waiting: dict[NodeRef, set[asyncio.Future[None]]] = {}
        self._last_seen: dict[NodeRef, LastSeen] = {}
        self._due: dict[NodeRef, float] = {}  # to be written next
        self._reading: dict[NodeRef, object] = {}  # nodes that are being read and have not changed since
        self._disconnected = False  # nothing is cached while the change notifications are disconnected
        self._tasks: list[asyncio.Task[None]] = []
        self._waking: asyncio.Task[None] | None = None  # wakes all held polls, a few at a time
        self.closing = asyncio.Event()

    @property
    def held_polls(self) -> int:
        return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        changes = self._store.changes()
        flushing = run_periodically("sightings", self.flush, FLUSH_SECONDS)
        self._tasks = [asyncio.create_task(self._follow(changes)), asyncio.create_task(flushing)]

    async def stop(self) -> None:
        self.release_waiters()
        tasks = [*self._tasks, *([self._waking] if self._waking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._due |= {
            node_ref: heard.moment for node_ref, heard in self._last_seen.items() if heard.moment > heard.written
        }
        with suppress(StoreUnavailable):
            await self.flush()

    def release_waiters(self, seconds: float = 0.0) -> None:
        """Ends all held polls, at once or spread over at most this time. New polls are not held.

        The nodes connect to another replica, which cannot serve the TLS handshakes of all of them at the same time.
        """
        self.closing.set()
        if seconds:
            self._wake_all(self._wake_within(seconds))
        else:
            for node_ref in list(self._waiting):
                self._wake(node_ref)

    def cached(self, node_ref: NodeRef) -> PollState | None:
        return self._states.get(node_ref)

    async def state(self, node_ref: NodeRef) -> PollState:
        """Returns the state of a node, from the store if not cached. Reads again if the node changed meanwhile."""
        while (found := self._states.get(node_ref)) is None:
            reading = self._reading.setdefault(node_ref, object())
            try:
                found = await self._look_up(node_ref)
                current = self._reading.get(node_ref) is reading
            finally:
                if self._reading.get(node_ref) is reading:
                    del self._reading[node_ref]
            if current:
                self._cache(node_ref, found)
                return found
        return found

    async def refresh(self, node_ref: NodeRef) -> PollState:
        """Reads the state again: a key that another replica has just bound may not be in the cached one yet."""
        self._forget(node_ref)
        return await self.state(node_ref)

    async def _look_up(self, node_ref: NodeRef) -> PollState:
        node = await self._store.node(*node_ref)
        if node is None:
            last = await self._store.last_known_node(*node_ref)
            return PollState("", last.identity, keys=last.keys)
        owner = node.join.machines.owner
        return PollState(
            node.etag,
            node.identity,
            granted_identity(node),
            owner.id if owner else "",
            await self._store.owned_identities(*node_ref, node.identity),
            node.join.keys if node.join.keys != NO_KEYS else NO_KEYS,
        )

    def _cache(self, node_ref: NodeRef, poll_state: PollState) -> None:
        if self._disconnected or not (poll_state.etag or poll_state.identity or poll_state.keys.current):
            return  # an unknown node is not cached: requests for invented names must not fill the memory
        self._states[node_ref] = poll_state

    async def wait_for_change(self, node_ref: NodeRef, etag: str, seconds: float) -> bool:
        """Waits until the etag of the node, its machine or its key differs.

        Returns False if they are the same after that time, or at shutdown.
        """
        end = time.monotonic() + seconds
        first = await self.state(node_ref)
        while (state := await self.state(node_ref)).etag == etag and (state.machine, state.keys) == (
            first.machine,
            first.keys,
        ):
            left = end - time.monotonic()
            if left <= 0 or self.closing.is_set():
                return False
            await self._wait(node_ref, left)
        return True

    async def _wait(self, node_ref: NodeRef, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(node_ref, set()).add(future)
        timer = loop.call_later(seconds, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            waiting = self._waiting.get(node_ref)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[node_ref]

    def _wake(self, node_ref: NodeRef) -> None:
        for future in self._waiting.get(node_ref, ()):
            _finish(future)

    # Last-seen times
    def record_seen(self, cluster: str, node: str, timestamp: float) -> None:
        node_ref = (cluster, node)
        known = self._last_seen.get(node_ref)
        if known is not None and timestamp - known.written < WRITE_SECONDS:
            self._last_seen[node_ref] = LastSeen(timestamp, known.written)
        else:
            self._last_seen[node_ref] = LastSeen(timestamp, timestamp)
            self._due[node_ref] = timestamp

    def last_seen(self, cluster: str, node: str) -> float:
        known = self._last_seen.get((cluster, node))
        return known.moment if known else 0.0

    async def flush(self) -> None:
        """Writes the due last-seen times in small batches, so that concurrent polls are not delayed."""
        due, self._due = self._due, {}
        moments = [(*node_ref, moment) for node_ref, moment in due.items()]
        try:
            for first in range(0, len(moments), NODES_PER_WRITE):
                await self._store.seen(moments[first : first + NODES_PER_WRITE])
        except StoreUnavailable:
            self._due = {**due, **self._due}
            raise

    async def _follow(self, changes: AsyncIterator[StoreChange]) -> None:
        async for change in changes:
            match change:
                case NodeWritten(cluster, node):
                    self._forget((cluster, node))
                case NodeDeleted(cluster, node):
                    self._last_seen.pop((cluster, node), None)
                    self._forget((cluster, node))
                case Disconnected():
                    # Held polls wait for the resync: without the database, none of them could be answered.
                    self._disconnected = True
                    self._forget_all()
                case Resync():
                    self._disconnected = False
                    self._forget_all()
                    if not self.closing.is_set():
                        self._wake_all(self._wake_as_read())

    def forget_owner(self, node_ref: NodeRef, identity: str) -> None:
        """Forgets a state that was read before the identity signed in as this node."""
        known = self._states.get(node_ref)
        if known and identity not in known.owned:
            self._forget(node_ref)

    def _forget(self, node_ref: NodeRef) -> None:
        self._states.pop(node_ref, None)
        self._reading.pop(node_ref, None)
        self._wake(node_ref)

    def _forget_all(self) -> None:
        self._states.clear()
        self._reading.clear()

    def _wake_all(self, waking: Coroutine[None, None, None]) -> None:
        if self._waking:
            self._waking.cancel()
        self._waking = asyncio.create_task(waking)

    async def _wake_as_read(self) -> None:
        """Wakes all held polls, as fast as the store answers them: tens of thousands at once would wait too long."""
        waiting = list(self._waiting)
        for start in range(0, len(waiting), READS_AT_ONCE):
            for node_ref in waiting[start : start + READS_AT_ONCE]:
                self._wake(node_ref)
            await asyncio.sleep(READ_PAUSE)
            while len(self._reading) >= READS_AT_ONCE:
                await asyncio.sleep(READ_PAUSE)

    async def _wake_within(self, seconds: float) -> None:
        waiting = list(self._waiting)
        rate = max(RELEASED_PER_SECOND, len(waiting) / seconds)
        together = math.ceil(rate * RELEASE_PAUSE)
        for start in range(0, len(waiting), together):
            for node_ref in waiting[start : start + together]:
                self._wake(node_ref)
            await asyncio.sleep(RELEASE_PAUSE)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
