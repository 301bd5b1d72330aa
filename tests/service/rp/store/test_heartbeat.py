from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aks_flex_rp.store.outbox import OutboxMessage
from tests.service.rp.store.builders import node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.heartbeat import HeartbeatChange
    from aks_flex_rp.store.model import Node

SINCE = 1000.0


def managed_node(key: str = "edge-1", version: int = 1, *, monitored: bool = True) -> Node:
    return node(key, version, properties={"continuousMonitoring": monitored})


async def both(store: Store) -> list[HeartbeatChange]:
    return [each for silent in (True, False) for each in await store.unnoted_silences(SINCE, 10, silent=silent)]


async def found(store: Store) -> list[tuple[str, bool]]:
    return [(each.name, each.silent) for each in await both(store)]


async def the_one(store: Store) -> HeartbeatChange:
    (one,) = await both(store)
    return one


def message(id: str) -> OutboxMessage:  # noqa: A002
    return OutboxMessage(id, "hook", "/c", "edge-1", 1.0, "{}")


async def test_only_monitored_nodes_without_recent_heartbeat_are_silent(store: Store) -> None:
    for each in (
        managed_node("old"),
        managed_node("new"),
        managed_node("never"),
        managed_node("bare", monitored=False),
    ):
        await store.put_node(each, None)
    await store.seen([("/c", "old", SINCE - 1), ("/c", "new", SINCE), ("/c", "bare", SINCE - 1)])
    assert await found(store) == [("Old", True)]


async def test_silence_is_noted_and_notified_once_across_replicas(replicas: tuple[Store, Store]) -> None:
    store, other = replicas
    await store.put_node(managed_node(), None)
    await store.seen([("/c", "edge-1", SINCE - 1)])
    seen = [await the_one(store), await the_one(other)]
    noted = await asyncio.gather(
        store.note_silence(seen[0], SINCE, [message("a")]), other.note_silence(seen[1], SINCE, [message("b")])
    )
    assert sorted(noted) == [False, True]
    assert await found(store) == []
    assert [each.messages for each in await store.pending_messages()] == [1]


async def test_node_with_fresh_heartbeat_is_not_noted_as_silent(store: Store) -> None:
    await store.put_node(managed_node(), None)
    await store.seen([("/c", "edge-1", SINCE - 1)])
    silence = await the_one(store)
    await store.seen([("/c", "edge-1", SINCE + 1)])
    assert not await store.note_silence(silence, SINCE, [message("a")])
    assert await store.pending_messages() == ()


async def test_silence_ends_when_node_is_heard_or_no_longer_monitored(store: Store) -> None:
    for key in ("heard", "left-alone"):
        await store.put_node(managed_node(key), None)
        await store.seen([("/c", key, SINCE - 1)])
    for each in await both(store):
        assert await store.note_silence(each, SINCE)
    await store.seen([("/c", "heard", SINCE + 1)])
    await store.put_node(managed_node("left-alone", 2, monitored=False), "left-alone-1")
    again = {each.key: each for each in await both(store)}
    assert {key: (each.silent, each.monitored) for key, each in again.items()} == {
        "heard": (False, True),
        "left-alone": (False, False),
    }
    for each in again.values():
        assert await store.note_silence(each, SINCE)
    assert await found(store) == []


async def test_status_report_ends_silence(store: Store) -> None:
    await store.put_node(managed_node(), None)
    await store.seen([("/c", "edge-1", SINCE - 1)])
    assert await store.note_silence(await the_one(store), SINCE)
    assert await store.report("/c", "edge-1", {"kubeletVersion": "1.34.4"}, SINCE + 1)
    assert await found(store) == [("Edge-1", False)]
