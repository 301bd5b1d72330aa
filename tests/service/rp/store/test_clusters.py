from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.model import Conflict
from tests.service.rp.store.builders import cluster, node

if TYPE_CHECKING:
    from aks_flex_rp.store.protocol import Store


async def test_a_cluster_comes_back_as_it_was_put(store: Store) -> None:
    assert await store.cluster("/c") is None
    await store.put_cluster(cluster(), None)
    assert await store.cluster("/c") == cluster()


async def test_clusters_come_in_the_order_of_their_keys(store: Store) -> None:
    for key in ("/b", "/B", "/a"):
        await store.put_cluster(cluster(key), None)
    assert [one.key for one in await store.clusters()] == ["/B", "/a", "/b"]


async def test_a_cluster_is_made_once(store: Store) -> None:
    await store.put_cluster(cluster(), None)
    with pytest.raises(Conflict):
        await store.put_cluster(replace(cluster(), facts={"other": 1}), None)
    assert await store.cluster("/c") == cluster()


async def test_a_cluster_is_replaced_as_it_was_read_only(store: Store) -> None:
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


async def test_a_cluster_goes_when_its_nodes_have_gone(store: Store) -> None:
    assert not await store.delete_cluster("/c")
    await store.put_cluster(cluster(), None)
    await store.put_node(node(), None)
    with pytest.raises(Conflict):
        await store.delete_cluster("/c")
    await store.delete_node("/c", "edge-1", None)
    assert await store.delete_cluster("/c")
    assert await store.clusters() == ()
