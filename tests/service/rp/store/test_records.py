"""Tests of the nodes, clusters and pending configuration bundles that a store keeps, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.changes import NodeWritten
from aks_flex_rp.store.model import Conflict, Delivery
from tests.service.rp.store.builders import cluster, delivery, event, next_of, no_more, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store


async def test_stored_node_is_read_back_unchanged(store: Store) -> None:
    whole = node(
        system={"by": "me"},
        join=JoinState.from_document({"state": "Created"}),
        status={"ready": False},
        identity="0000-1111",
    )
    assert await store.node("/c", "edge-1") is None
    await store.put_node(whole, None)
    assert await store.node("/c", "edge-1") == whole
    assert await store.node("/other", "edge-1") is None


async def test_creating_existing_node_is_a_conflict(store: Store) -> None:
    await store.put_node(node(), None)
    with pytest.raises(Conflict):
        await store.put_node(node(version=2), None)
    assert await store.node("/c", "edge-1") == node()


async def test_replacing_node_with_stale_etag_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.put_node(node(), "edge-1-0")
    await store.put_node(node(), None)
    await store.put_node(node(version=2), "edge-1-1")
    with pytest.raises(Conflict):
        await store.put_node(node(version=3), "edge-1-1")
    assert await store.node("/c", "edge-1") == node(version=2)


async def test_node_version_may_not_decrease(store: Store) -> None:
    await store.put_node(node(version=5), None)
    await store.put_node(node(version=5, etag="another"), "edge-1-5")
    with pytest.raises(Conflict):
        await store.put_node(node(version=4), "another")


async def test_node_version_must_increase_after_deletion(store: Store) -> None:
    assert (await store.last_known_node("/c", "edge-1")).version == 0
    await store.put_node(node(version=5), None)
    assert (await store.last_known_node("/c", "edge-1")).version == 5
    assert await store.delete_node("/c", "edge-1", "edge-1-5")
    assert (await store.last_known_node("/c", "edge-1")).version == 5
    for stale in (4, 5):
        with pytest.raises(Conflict):
            await store.put_node(node(version=stale), None)
    await store.put_node(node(version=6), None)
    assert await store.node("/c", "edge-1") == node(version=6)
    assert (await store.last_known_node("/c", "edge-1")).version == 6


async def test_delete_node_checks_etag_if_given_and_audits_only_success(store: Store) -> None:
    assert not await store.delete_node("/c", "edge-1", None)
    assert not await store.delete_node("/c", "edge-1", "any")
    await store.put_node(node(), None)
    with pytest.raises(Conflict):
        await store.delete_node("/c", "edge-1", "other", [event("delete")])
    assert await store.audit() == ()
    assert await store.delete_node("/c", "edge-1", None, [event("delete")])
    assert [one.what for one in await store.audit()] == ["delete"]
    assert not await store.delete_node("/c", "edge-1", None, [event("delete")])
    assert len(await store.audit()) == 1


async def test_deleted_node_has_no_remaining_data(store: Store) -> None:
    await store.put_node(node(), None)
    await store.report("/c", "edge-1", {"ready": True}, 70.0)
    await store.put_delivery(delivery())
    await store.delete_node("/c", "edge-1", None)
    assert (await store.nodes("/c")).nodes == ()
    assert await store.count_nodes() == 0
    assert await store.fetch_delivery("hash", 1.0) is None
    assert not await store.report("/c", "edge-1", {}, 80.0)
    await store.seen([("/c", "edge-1", 90.0)])
    await store.put_node(node(version=2), None)
    assert await store.node("/c", "edge-1") == node(version=2)


async def test_node_pages_are_in_byte_order(store: Store) -> None:
    names = ["a", "a-b", "a.b", "ab", "b", "B", "_", "é", "z"]
    for name in names:
        await store.put_node(node(name), None)
    await store.put_node(replace(node("other"), cluster="/d"), None)
    found, after = [], ""
    while True:
        page = await store.nodes("/c", after, limit=2)
        found += [one.key for one in page.nodes]
        if page.after is None:
            break
        assert len(page.nodes) == 2
        after = page.after
    assert found == sorted(names, key=str.encode)
    assert await store.count_nodes() == len(names) + 1


async def test_last_page_has_no_continuation_even_when_full(store: Store) -> None:
    for name in ("a", "b"):
        await store.put_node(node(name), None)
    assert (await store.nodes("/c", limit=2)).after is None
    assert (await store.nodes("/c", limit=1)).after == "a"
    assert (await store.nodes("/c", limit=0)).after == "a"
    assert (await store.nodes("/nothing")).nodes == ()


async def test_seen_updates_only_last_seen_and_notifies_no_subscriber(store: Store) -> None:
    changes = store.changes()
    await store.put_node(node(), None)
    await no_more(changes)  # PostgreSQL announces a write of its own twice
    await store.seen([("/c", "edge-1", 50.5), ("/c", "nobody", 60.0)])
    await store.seen([("/c", "edge-1", 40.0)])
    await store.seen([])
    assert await store.node("/c", "edge-1") == node(last_seen=50.5)
    assert await store.node("/c", "nobody") is None
    await store.put_node(node("edge-2"), None)
    assert await next_of(changes) == NodeWritten("/c", "edge-2", 1)


async def test_report_updates_only_status_and_notifies_no_subscriber(store: Store) -> None:
    changes = store.changes()
    await store.put_node(node(join=JoinState.from_document({"state": "Created"})), None)
    await no_more(changes)
    assert await store.report("/c", "edge-1", {"ready": True}, 50.0)
    reported = node(join=JoinState.from_document({"state": "Created"}), status={"ready": True}, last_seen=50.0)
    assert await store.node("/c", "edge-1") == reported
    assert await store.report("/c", "edge-1", {}, 45.0)
    assert await store.node("/c", "edge-1") == node(
        join=JoinState.from_document({"state": "Created"}), last_seen=50.0
    )
    assert not await store.report("/c", "nobody", {}, 1.0)
    await store.put_node(node("edge-2"), None)
    assert await next_of(changes) == NodeWritten("/c", "edge-2", 1)


async def test_second_write_from_same_read_is_a_conflict_despite_same_etag(store: Store) -> None:
    await store.put_node(node(), None)
    read = await store.node("/c", "edge-1")
    assert read
    await store.put_node(replace(read, join=JoinState.from_document({"state": "BootstrapAttempted"})), read.etag)
    with pytest.raises(Conflict):
        await store.put_node(replace(read, join=JoinState.from_document({"state": "Failed"})), read.etag)
    found = await store.node("/c", "edge-1")
    assert found
    assert found.join == JoinState.from_document({"state": "BootstrapAttempted"})


async def test_node_write_with_retire_revokes_delivery(store: Store) -> None:
    await store.put_node(node(), None)
    await store.put_delivery(Delivery("secret", "/c", "edge-1", 100.0, b"bundle"))
    read = await store.node("/c", "edge-1")
    assert read
    await store.put_node(read, read.etag)
    assert await store.fetch_delivery("secret", 50.0)
    read = await store.node("/c", "edge-1")
    assert read
    await store.put_node(read, read.etag, retire=True)
    assert await store.fetch_delivery("secret", 50.0) is None


async def test_node_write_keeps_status_reported_in_the_meantime(store: Store) -> None:
    await store.put_node(node(), None)
    read = await store.node("/c", "edge-1")
    assert read
    await store.report("/c", "edge-1", {"ready": True}, 50.0)
    await store.put_node(replace(read, version=2, etag="next"), read.etag)
    found = await store.node("/c", "edge-1")
    assert found
    assert (found.status, found.last_seen, found.etag) == ({"ready": True}, 50.0, "next")


async def test_store_accepts_malformed_and_hostile_strings(store: Store) -> None:
    for odd in ("a\0b", "\udc80", "' OR 1=1 --", "ä" * 2000):
        assert await store.node(odd, odd) is None
        await store.record(event(who=odd, resource=odd))
    assert [one.who[:3] for one in await store.audit()] == ["äää", "' O", "?", "a\ufffdb"]


async def test_stored_cluster_is_read_back_unchanged(store: Store) -> None:
    assert await store.cluster("/c") is None
    await store.put_cluster(cluster(), None)
    assert await store.cluster("/c") == cluster()


async def test_clusters_are_listed_in_key_order(store: Store) -> None:
    for key in ("/b", "/B", "/a"):
        await store.put_cluster(cluster(key), None)
    assert [one.key for one in await store.clusters()] == ["/B", "/a", "/b"]


async def test_creating_existing_cluster_is_a_conflict(store: Store) -> None:
    await store.put_cluster(cluster(), None)
    with pytest.raises(Conflict):
        await store.put_cluster(replace(cluster(), facts={"other": 1}), None)
    assert await store.cluster("/c") == cluster()


async def test_replacing_cluster_with_stale_version_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.put_cluster(cluster(version=2), 1)
    await store.put_cluster(cluster(), None)
    await store.put_cluster(
        cluster(
            version=2,
        ),
        1,
    )
    with pytest.raises(Conflict):
        await store.put_cluster(cluster(version=3), 1)
    assert await store.cluster("/c") == cluster(version=2)


async def test_cluster_can_be_deleted_only_after_its_nodes(store: Store) -> None:
    assert not await store.delete_cluster("/c")
    await store.put_cluster(cluster(), None)
    await store.put_node(node(), None)
    with pytest.raises(Conflict):
        await store.delete_cluster("/c")
    await store.delete_node("/c", "edge-1", None)
    assert await store.delete_cluster("/c")
    assert await store.clusters() == ()


async def test_delivery_is_fetched_until_it_expires_and_fetches_are_counted(store: Store) -> None:
    assert await store.fetch_delivery("hash", 1.0) is None
    await store.put_delivery(delivery())
    assert await store.fetch_delivery("hash", 1999.9) == delivery(fetched=1)
    assert await store.fetch_delivery("hash", 1999.9) == delivery(fetched=2)
    assert await store.fetch_delivery("hash", 2000.0) is None


async def test_concurrent_fetches_of_delivery_are_all_counted(store: Store) -> None:
    await store.put_delivery(delivery())
    found = await asyncio.gather(*(store.fetch_delivery("hash", 1.0) for _ in range(20)))
    assert sorted(one.fetched for one in found if one) == list(range(1, 21))


async def test_new_delivery_replaces_previous_one_of_same_node(store: Store) -> None:
    await store.put_delivery(delivery("old"))
    await store.fetch_delivery("old", 1.0)
    await store.put_delivery(delivery("other", "edge-2"))
    await store.put_delivery(delivery("new"))
    assert await store.fetch_delivery("old", 1.0) is None
    assert await store.fetch_delivery("new", 1.0) == delivery("new", fetched=1)
    assert await store.fetch_delivery("other", 1.0)


async def test_revoking_deliveries_affects_only_the_given_node(store: Store) -> None:
    await store.put_delivery(delivery("one"))
    await store.put_delivery(delivery("two", "edge-2"))
    assert await store.revoke_deliveries("/c", "edge-1") == 1
    assert await store.revoke_deliveries("/c", "edge-1") == 0
    assert await store.fetch_delivery("one", 1.0) is None
    assert await store.fetch_delivery("two", 1.0)


async def test_sweep_deletes_only_expired_deliveries(store: Store) -> None:
    for number in range(4):
        await store.put_delivery(replace(delivery(f"h{number}", f"n{number}"), expires=100.0 + number))
    assert await store.sweep(101.0) == 2
    assert await store.sweep(101.0) == 0
    assert await store.fetch_delivery("h2", 1.0)
