"""Tests of the poll cache: an entry is never older than the last known change."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_rp.api import poll_cache
from aks_flex_rp.api.poll_cache import PollCache
from aks_flex_rp.store.changes import ChangeBroadcast, Disconnected, NodeWritten, Resync
from aks_flex_rp.store.model import LastKnownNode, Node, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

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


def with_cards(store: SlowStore, act: Callable[[PollCache], object]) -> None:
    async def run() -> None:
        held = PollCache(cast("Store", store))
        held.start()
        await asyncio.sleep(0)
        try:
            await act(held)  # type: ignore[misc]
        finally:
            await held.stop()

    asyncio.run(run())


def test_poll_cache_reads_node_from_store_once() -> None:
    store = SlowStore()

    async def act(held: PollCache) -> None:
        assert [(await held.state(PLACE)).etag for _ in range(3)] == [FIRST] * 3

    with_cards(store, act)
    assert store.reads == 1


def test_poll_cache_rereads_node_that_changes_during_read() -> None:
    store = SlowStore()
    store.while_read = lambda: store.write(SECOND)

    async def act(held: PollCache) -> None:
        assert (await held.state(PLACE)).etag == SECOND
        assert held.cached(PLACE) is not None

    with_cards(store, act)


def test_poll_cache_detects_change_between_read_and_wait() -> None:
    store = SlowStore()
    store.while_read = lambda: store.write(SECOND)

    async def act(held: PollCache) -> None:
        assert await asyncio.wait_for(held.wait_for_change(PLACE, FIRST, 30), 10)

    with_cards(store, act)


def test_poll_cache_does_not_reread_when_another_node_changes() -> None:
    store = SlowStore()
    store.while_read = lambda: store.broadcast.publish([NodeWritten("cluster", "edge-2", 2)])

    async def act(held: PollCache) -> None:
        await held.state(PLACE)
        assert held.cached(PLACE) is not None

    with_cards(store, act)
    assert store.reads == 1


def test_concurrent_reads_of_same_node_do_not_block_each_other() -> None:
    store = SlowStore()

    async def act(held: PollCache) -> None:
        both = await asyncio.wait_for(asyncio.gather(held.state(PLACE), held.state(PLACE)), 10)
        assert [state.etag for state in both] == [FIRST, FIRST]

    with_cards(store, act)


def test_poll_cache_does_not_cache_missing_node() -> None:
    async def act(held: PollCache) -> None:
        assert (await held.state(("cluster", "made-up"))).etag == ""
        assert held.cached(("cluster", "made-up")) is None

    with_cards(SlowStore(), act)


def test_heartbeats_are_flushed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_cache, "NODES_PER_WRITE", 2)
    store = SlowStore()

    async def act(held: PollCache) -> None:
        for number in range(5):
            held.record_seen("cluster", f"edge-{number}", 1.0)
        await held.flush()

    with_cards(store, act)
    assert store.batches == [2, 2, 1]


def test_heartbeats_are_kept_while_store_is_unavailable() -> None:
    store = SlowStore(away=True)

    async def act(held: PollCache) -> None:
        held.record_seen(*PLACE, 5.0)
        with pytest.raises(StoreUnavailable):
            await held.flush()
        assert held.last_seen(*PLACE) == 5.0
        store.away = False

    with_cards(store, act)
    assert store.batches == [1]


def test_heartbeats_of_polling_node_are_flushed_at_intervals_and_at_stop() -> None:
    store = SlowStore()

    async def act(held: PollCache) -> None:
        for moment in (100.0, 130.0, 159.0):
            held.record_seen(*PLACE, moment)
            await held.flush()
        assert store.batches == [1]
        assert held.last_seen(*PLACE) == 159.0
        held.record_seen(*PLACE, 161.0)
        await held.flush()
        held.record_seen(*PLACE, 170.0)
        assert store.batches == [1, 1]

    with_cards(store, act)  # the end flushes the heartbeats
    assert store.batches == [1, 1, 1]


def test_poll_cache_is_disabled_while_change_feed_is_disconnected() -> None:
    store = SlowStore()

    async def act(held: PollCache) -> None:
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

    with_cards(store, act)


def hold(held: PollCache, count: int) -> list[asyncio.Task[bool]]:
    waits = (held.wait_for_change(("cluster", f"edge-{number}"), FIRST, 30) for number in range(count))
    return [asyncio.create_task(wait) for wait in waits]


async def all_held(held: PollCache, count: int) -> None:
    while held.held_polls < count:
        await asyncio.sleep(0.001)


def test_held_polls_do_not_read_while_the_database_is_away() -> None:
    store = SlowStore()

    async def act(held: PollCache) -> None:
        polls = hold(held, 250)
        await all_held(held, 250)
        store.reads = 0
        store.broadcast.publish([Disconnected()])
        await asyncio.sleep(0.05)
        assert (store.reads, held.held_polls) == (0, 250)
        store.etag = SECOND
        store.broadcast.publish([Resync()])
        assert await asyncio.wait_for(asyncio.gather(*polls), 10) == [True] * 250

    with_cards(store, act)


def test_resync_reads_the_nodes_of_held_polls_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_cache, "READS_AT_ONCE", 20)
    store = SlowStore()

    async def act(held: PollCache) -> None:
        polls = hold(held, 250)
        await all_held(held, 250)
        store.most_reading, store.etag = 0, SECOND
        store.broadcast.publish([Resync()])
        await asyncio.wait_for(asyncio.gather(*polls), 10)

    with_cards(store, act)
    assert 1 <= store.most_reading <= 20


def test_stopping_replica_ends_held_polls_over_some_time() -> None:
    async def act(held: PollCache) -> None:
        polls = hold(held, 60)
        await all_held(held, 60)
        held.release_waiters(5.0)
        await asyncio.sleep(0.02)
        assert 0 < len([poll for poll in polls if poll.done()]) < 30
        assert await asyncio.wait_for(asyncio.gather(*polls), 10) == [False] * 60

    with_cards(SlowStore(), act)


@pytest.mark.parametrize(("count", "seconds", "together"), [(1000, 0.5, 100), (20, 10.0, 5)])
def test_polls_end_in_time_and_not_slower_than_a_hundred_a_second(count: int, seconds: float, together: int) -> None:
    async def act(held: PollCache) -> None:
        polls = hold(held, count)
        await all_held(held, count)
        held.release_waiters(seconds)
        await asyncio.sleep(0.02)
        assert len([poll for poll in polls if poll.done()]) == together
        await asyncio.wait_for(asyncio.gather(*polls), 10)

    with_cards(SlowStore(), act)
