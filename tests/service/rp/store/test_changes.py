from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.changes import ChangeSubscription, NodeDeleted, NodeWritten, Resync
from tests.service.rp.store.builders import comes, next_of, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import Place


async def test_all_subscribers_receive_writes_and_deletions(store: Store) -> None:
    listeners = [store.changes() for _ in range(3)]
    await store.put_node(node(), None)
    assert all([await comes(one, NodeWritten("/c", "edge-1", 1)) for one in listeners])
    await store.put_node(node(version=2), "edge-1-1")
    assert all([await comes(one, NodeWritten("/c", "edge-1", 2)) for one in listeners])
    await store.delete_node("/c", "edge-1", None)
    assert all([await comes(one, NodeDeleted("/c", "edge-1")) for one in listeners])


async def test_cancelled_write_still_notifies_subscribers(store: Store) -> None:
    changes = store.changes()
    await store.put_node(node(), None)
    assert await comes(changes, NodeWritten("/c", "edge-1", 1))
    found = await store.node("/c", "edge-1")  # its revision is known, so the next write starts immediately
    assert found
    changed = replace(found, version=2, etag="edge-1-2")
    write = asyncio.create_task(store.put_node(changed, found.etag))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert await comes(changes, NodeWritten("/c", "edge-1", 2))
    assert await store.node("/c", "edge-1") == changed


async def test_change_subscription_ends_when_store_stops(place: Place) -> None:
    store = place()
    await store.start()
    changes = store.changes()
    await store.put_node(node(), None)
    assert await next_of(changes)
    await store.stop()
    with pytest.raises(StopAsyncIteration):
        await next_of(changes)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_write_on_one_replica_notifies_the_other(replicas: tuple[Store, Store]) -> None:
    one, other = replicas
    here, there = one.changes(), other.changes()
    for version in range(1, 20):
        expected = f"edge-1-{version - 1}" if version > 1 else None
        await one.put_node(node(version=version), expected)
        assert await comes(there, NodeWritten("/c", "edge-1", version))
        assert await comes(here, NodeWritten("/c", "edge-1", version))
    assert await other.node("/c", "edge-1") == node(version=19)


async def test_lagging_subscriber_receives_newest_change_of_each_node() -> None:
    lagging = ChangeSubscription(backlog=10)
    for version in range(1, 101):
        lagging.notify(NodeWritten("/c", f"edge-{version % 5}", version))
    assert [await next_of(lagging) for _ in range(5)] == [
        NodeWritten("/c", f"edge-{number % 5}", 95 + number) for number in range(1, 6)
    ]


async def test_subscriber_over_backlog_receives_resync() -> None:
    lagging = ChangeSubscription(backlog=10)
    for number in range(100):
        lagging.notify(NodeWritten("/c", f"edge-{number}", 1))
    assert await next_of(lagging) == Resync()
    lagging.notify(NodeWritten("/c", "edge-1", 2))
    assert await next_of(lagging) == NodeWritten("/c", "edge-1", 2)
