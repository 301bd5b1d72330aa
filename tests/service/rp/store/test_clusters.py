from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.model import Conflict
from tests.service.rp.store.builders import cluster, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store


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
