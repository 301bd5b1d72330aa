"""Tests of the poll cache: an entry is never older than the last known change."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_rp.api import poll_cache
from aks_flex_rp.api.poll_cache import PollCache
from aks_flex_rp.store.changes import ChangeBroadcast, Disconnected, NodeWritten, Resync
from aks_flex_rp.store.model import LastKnownNode, Node, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.changes import StoreChange

PLACE = ("cluster", "edge-1")
FIRST, SECOND = '"1"', '"2"'


@dataclass
class SlowStore:
    """A store whose nodes have one etag, which can change during a read."""

    etag: str = FIRST
    broadcast: ChangeBroadcast = field(default_factory=ChangeBroadcast)
    reads: int = 0
    reading: int = 0
    most_reading: int = 0
    while_read: Callable[[], None] | None = None
    batches: list[int] = field(default_factory=list)
    away: bool = False

    def write(self, etag: str) -> None:
        self.etag = etag
        self.broadcast.publish([NodeWritten(*PLACE, 2)])

    async def node(self, cluster: str, key: str) -> Node | None:
        found = Node(cluster, key, key, 1, self.etag, {}, {}) if key.startswith("edge-") else None
        self.reads += 1
        self.reading += 1
        self.most_reading = max(self.reading, self.most_reading)
        act, self.while_read = self.while_read, None
        if act:
            act()
        for _ in range(3):  # lets tasks that process changes run before this returns
            await asyncio.sleep(0)
        self.reading -= 1
        return found

    async def owned_identities(self, *_: str) -> frozenset[str]:
        return frozenset()

    async def last_known_node(self, *_: str) -> LastKnownNode:
        return LastKnownNode()

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
        if self.away:
            raise StoreUnavailable("It is away.")
        self.batches.append(len(moments))

    def changes(self) -> AsyncIterator[StoreChange]:
        return self.broadcast.subscribe()


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def held(store: SlowStore) -> AbstractAsyncContextManager[PollCache]:
    @asynccontextmanager
    async def running() -> AsyncIterator[PollCache]:
        cache = PollCache(cast("Store", store))
        cache.start()
        await asyncio.sleep(0)
        try:
            yield cache
        finally:
            await cache.stop()

    return running()


async def test_poll_cache_reads_node_from_store_once(store: SlowStore, held: PollCache) -> None:
    assert [(await held.state(PLACE)).etag for _ in range(3)] == [FIRST] * 3
    assert store.reads == 1


async def test_poll_cache_rereads_node_that_changes_during_read(store: SlowStore, held: PollCache) -> None:
    store.while_read = lambda: store.write(SECOND)

    assert (await held.state(PLACE)).etag == SECOND
    assert held.cached(PLACE) is not None


async def test_poll_cache_detects_change_between_read_and_wait(store: SlowStore, held: PollCache) -> None:
    store.while_read = lambda: store.write(SECOND)

    assert await asyncio.wait_for(held.wait_for_change(PLACE, FIRST, 30), 10)


async def test_poll_cache_does_not_reread_when_another_node_changes(store: SlowStore, held: PollCache) -> None:
    store.while_read = lambda: store.broadcast.publish([NodeWritten("cluster", "edge-2", 2)])

    await held.state(PLACE)
    assert held.cached(PLACE) is not None
    assert store.reads == 1


async def test_concurrent_reads_of_same_node_do_not_block_each_other(store: SlowStore, held: PollCache) -> None:
    both = await asyncio.wait_for(asyncio.gather(held.state(PLACE), held.state(PLACE)), 10)
    assert [state.etag for state in both] == [FIRST, FIRST]


async def test_poll_cache_does_not_cache_missing_node(held: PollCache) -> None:
    assert (await held.state(("cluster", "made-up"))).etag == ""
    assert held.cached(("cluster", "made-up")) is None


async def test_heartbeats_are_flushed_in_batches(
    store: SlowStore, held: PollCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_cache, "NODES_PER_WRITE", 2)

    for number in range(5):
        held.record_seen("cluster", f"edge-{number}", 1.0)
    await held.flush()
    assert store.batches == [2, 2, 1]


async def test_heartbeats_are_kept_while_store_is_unavailable(store: SlowStore, held: PollCache) -> None:
    store.away = True
    held.record_seen(*PLACE, 5.0)
    with pytest.raises(StoreUnavailable):
        await held.flush()
    assert held.last_seen(*PLACE) == 5.0
    store.away = False
    await held.flush()
    assert store.batches == [1]


async def test_heartbeats_of_polling_node_are_flushed_at_intervals_and_at_stop(
    store: SlowStore, held: PollCache
) -> None:
    for moment in (100.0, 130.0, 159.0):
        held.record_seen(*PLACE, moment)
        await held.flush()
    assert store.batches == [1]
    assert held.last_seen(*PLACE) == 159.0
    held.record_seen(*PLACE, 161.0)
    await held.flush()
    held.record_seen(*PLACE, 170.0)
    assert store.batches == [1, 1]
    await held.stop()
    assert store.batches == [1, 1, 1]


async def test_poll_cache_is_disabled_while_change_feed_is_disconnected(store: SlowStore, held: PollCache) -> None:
    await held.state(PLACE)
    assert held.cached(PLACE)
    store.broadcast.publish([Disconnected()])
    await asyncio.sleep(0.01)
    await held.state(PLACE)
    assert held.cached(PLACE) is None
    store.broadcast.publish([Resync()])
    await asyncio.sleep(0.01)
    await held.state(PLACE)
    assert held.cached(PLACE)


async def hold(held: PollCache, count: int) -> list[asyncio.Task[bool]]:
    waits = (held.wait_for_change(("cluster", f"edge-{number}"), FIRST, 30) for number in range(count))
    polls = [asyncio.create_task(wait) for wait in waits]
    while held.held_polls < count:
        await asyncio.sleep(0.001)
    return polls


async def test_held_polls_do_not_read_while_the_database_is_away(store: SlowStore, held: PollCache) -> None:
    polls = await hold(held, 250)
    store.reads = 0
    store.broadcast.publish([Disconnected()])
    await asyncio.sleep(0.05)
    assert (store.reads, held.held_polls) == (0, 250)
    store.etag = SECOND
    store.broadcast.publish([Resync()])
    assert await asyncio.wait_for(asyncio.gather(*polls), 10) == [True] * 250


async def test_resync_reads_the_nodes_of_held_polls_a_few_at_a_time(
    store: SlowStore, held: PollCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_cache, "READS_AT_ONCE", 20)

    polls = await hold(held, 250)
    store.most_reading, store.etag = 0, SECOND
    store.broadcast.publish([Resync()])
    await asyncio.wait_for(asyncio.gather(*polls), 10)
    assert 1 <= store.most_reading <= 20


async def test_stopping_replica_ends_held_polls_over_some_time(held: PollCache) -> None:
    polls = await hold(held, 60)
    held.release_waiters(5.0)
    await asyncio.sleep(0.02)
    assert 0 < len([poll for poll in polls if poll.done()]) < 30
    assert await asyncio.wait_for(asyncio.gather(*polls), 10) == [False] * 60


@pytest.mark.parametrize(("count", "seconds", "together"), [(1000, 0.5, 100), (20, 10.0, 5)])
async def test_polls_end_in_time_and_not_slower_than_a_hundred_a_second(
    held: PollCache, count: int, seconds: float, together: int
) -> None:
    polls = await hold(held, count)
    held.release_waiters(seconds)
    await asyncio.sleep(0.02)
    assert len([poll for poll in polls if poll.done()]) == together
    await asyncio.wait_for(asyncio.gather(*polls), 10)
