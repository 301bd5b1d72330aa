"""Tests of silent nodes, on a real store with a simulated clock."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.notify.node_events import EventPublisher, Webhook
from aks_flex_rp.notify.notifier import StaleNodeMonitor
from aks_flex_rp.store.model import StoreUnavailable
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import node, record_authenticator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.store.model import Node

AFTER = 120.0
NOTICES = EventPublisher((Webhook("hook", "https://hooks.example.com", Path("secret")),))


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


def managed_node(key: str, version: int = 1, *, monitored: bool = True) -> Node:
    return node(key, version, properties={"continuousMonitoring": monitored})


async def advance_clock(watch: StaleNodeMonitor, clock: Clock, seconds: float) -> None:
    """Advances the clock in the steps of a running service."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(clock.now + 15.0, until)
        await watch.once()


def with_store(tmp_path: Path, work: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "store.db", record_authenticator())
        await store.start()
        try:
            await work(store)
        finally:
            await store.stop()

    asyncio.run(run())


async def take_messages(store: SqliteStore) -> list[tuple[str, str]]:
    """Removes and returns the pending messages in order."""
    found = []
    while messages := await store.due_messages("hook", 1e12, 100, 1.0):
        for each in messages:
            event = json.loads(each.body)
            found.append(
                (event["subject"], event["type"].removeprefix("com.aks-flex-node.node.").removesuffix(".v1"))
            )
            await store.message_sent(each)
    return found


def test_silent_node_is_notified_once_and_again_once_when_heard(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        for key in ("edge-1", "edge-2"):
            await store.put_node(managed_node(key), None)
            await store.seen([("/c", key, clock.now)])
        await advance_clock(watch, clock, AFTER / 2)
        await store.seen([("/c", "edge-2", clock.now)])
        await advance_clock(watch, clock, AFTER / 2 + 1)
        for _ in range(3):
            await watch.once()
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost")]
        await store.seen([("/c", "edge-1", clock.now)])
        for _ in range(3):
            await watch.once()
        assert await take_messages(store) == [("Edge-1", "heartbeat.restored")]

    with_store(tmp_path, work)


def test_no_node_is_silent_before_service_has_listened_long_enough(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        await store.put_node(managed_node("edge-1"), None)
        await store.seen([("/c", "edge-1", clock.now - 3600)])
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        await advance_clock(watch, clock, AFTER - 1)
        assert await take_messages(store) == []
        await advance_clock(watch, clock, 2)
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost")]

    with_store(tmp_path, work)


def test_restarted_service_notifies_recovered_node_immediately(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        earlier = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        await store.put_node(managed_node("edge-1"), None)
        await store.seen([("/c", "edge-1", clock.now)])
        await advance_clock(earlier, clock, AFTER + 1)
        await store.seen([("/c", "edge-1", clock.now)])
        await StaleNodeMonitor(store, NOTICES, AFTER, clock).once()
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost"), ("Edge-1", "heartbeat.restored")]

    with_store(tmp_path, work)


def test_store_outage_does_not_count_as_silence(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        await store.put_node(managed_node("edge-1"), None)
        await store.seen([("/c", "edge-1", clock.now)])
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        await advance_clock(watch, clock, AFTER - 1)
        clock.now += 2
        await store.stop()
        with pytest.raises(StoreUnavailable):
            await watch.once()
        await store.start()
        await watch.once()
        assert await take_messages(store) == []
        await advance_clock(watch, clock, AFTER)
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost")]

    with_store(tmp_path, work)


def test_node_no_longer_monitored_is_not_notified_as_heard(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        await store.put_node(managed_node("edge-1"), None)
        await store.seen([("/c", "edge-1", clock.now)])
        await advance_clock(watch, clock, AFTER + 1)
        await store.put_node(managed_node("edge-1", 2, monitored=False), "edge-1-1")
        await watch.once()
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost")]
        assert await store.unnoted_silences(clock.now - AFTER, 10, silent=False) == ()

    with_store(tmp_path, work)


def test_many_nodes_can_become_silent_at_once(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        names = [f"edge-{number}" for number in range(1200)]
        await asyncio.gather(*(store.put_node(managed_node(name), None) for name in names))
        await store.seen([("/c", name, clock.now) for name in names])
        await advance_clock(watch, clock, AFTER + 1)
        assert sorted(await take_messages(store)) == sorted((name.title(), "heartbeat.lost") for name in names)

    with_store(tmp_path, work)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_clock_jump_does_not_make_node_silent(tmp_path: Path, jump: float) -> None:
    async def work(store: SqliteStore) -> None:
        clock = Clock()
        watch = StaleNodeMonitor(store, NOTICES, AFTER, clock)
        await store.put_node(managed_node("edge-1"), None)
        await store.seen([("/c", "edge-1", clock.now - 2 * 3600)])
        await advance_clock(watch, clock, AFTER / 2)
        clock.now += jump
        await advance_clock(watch, clock, AFTER - 1)
        assert await take_messages(store) == []
        await advance_clock(watch, clock, 16)
        assert await take_messages(store) == [("Edge-1", "heartbeat.lost")]

    with_store(tmp_path, work)
