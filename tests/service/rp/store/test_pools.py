"""Tests of pools, their revisions and their nodes, and of attacks on their rows, on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.store.fleet import FleetQuery
from aks_flex_rp.store.model import Conflict, Node, PoolMembership, RecordRefused
from aks_flex_rp.store.pool_model import Pool, PoolCounts, PoolRevision
from aks_flex_rp.store.pools import MAX_REVISIONS
from tests.service.rp.store.builders import cluster, event, node, raw, write

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import Place

TEMPLATE = {"nodeConfig": {"labels": {"site": "oslo"}}}


def pool(key: str = "edge", number: int = 1, **more: Any) -> Pool:
    return replace(Pool("/c", key, {**TEMPLATE, "number": number}, number, "text", {"by": "me"}, 12.5), **more)


def revision(of: Pool, **more: Any) -> PoolRevision:
    made = PoolRevision(of.cluster, of.key, of.number, of.created, of.template, {"a": [None, 1]}, "me", "id", 13.5)
    return replace(made, **more)


async def put(store: Store, of: Pool, before: Pool | None = None) -> Pool:
    return await store.put_pool(of, before.version if before else None, revision(of), [event("pool.created", "/c/p")])


def member(key: str, of: str = "edge", number: int = 1, **more: Any) -> Node:
    effective = {"poolName": of, "continuousMonitoring": True, **TEMPLATE}
    return node(key, properties={"poolName": of}, pool=PoolMembership(of, number, effective), **more)


async def test_pool_and_its_revisions_are_kept(store: Store) -> None:
    first = await put(store, pool())
    second = await put(store, pool(number=2), first)
    assert await store.pool("/c", "edge") == second
    assert second.version > first.version
    assert second.etag != first.etag
    assert await store.pool_revision(second, 1) == revision(pool())
    assert [each.number for each in await store.pool_revisions(second, 99)] == [2, 1]
    assert [each.number for each in await store.pool_revisions(second, 2)] == [1]
    assert await store.pool_revision(second, 3) is None
    assert len(await store.audit(resource="/c/p")) == 2


async def test_old_revisions_are_deleted_unless_a_node_is_on_them(store: Store) -> None:
    other = await put(store, pool("other"))
    found = await put(store, pool())
    await store.put_node(member("n1", number=2), None)
    for number in range(2, MAX_REVISIONS + 6):
        found = await put(store, pool(number=number), found)
    kept = [each.number for each in await store.pool_revisions(found, 999, 999)]
    assert kept == [*range(MAX_REVISIONS + 5, 5, -1), 2]
    assert await store.pool_revision(found, 2) == revision(pool(number=2))
    assert await store.pool_revision(found, 1) is None
    assert await store.pool_revision(other, 1)
    await store.put_node(member("n1", number=9), (await nodes_of(store))["n1"])
    found = await put(store, pool(number=found.number + 1), found)
    assert await store.pool_revision(found, 2) is None


async def nodes_of(store: Store) -> dict[str, str]:
    return {each.key: each.etag for each in (await store.pool_nodes("/c", "edge")).nodes}


async def test_pools_are_listed_by_cluster(store: Store) -> None:
    for key in ("b", "a", "c"):
        await put(store, pool(key))
    await put(store, pool("a", cluster="/d"))
    assert [each.key for each in await store.pools("/c")] == ["a", "b", "c"]
    assert [each.key for each in await store.pools("/c", "a", 1)] == ["b"]


async def test_concurrent_writes_of_a_pool_conflict(store: Store) -> None:
    first = await put(store, pool())
    with pytest.raises(Conflict):
        await put(store, pool())
    await put(store, pool(number=2), first)
    with pytest.raises(Conflict):
        await put(store, pool(number=2), first)
    assert [each.number for each in await store.pool_revisions(first, 99)] == [2, 1]


async def test_node_keeps_its_own_properties_and_those_of_its_pool(store: Store) -> None:
    await store.put_node(member("edge-1", number=3), None)
    found = await store.node("/c", "edge-1")
    assert found is not None
    assert found.properties == {"poolName": "edge"}
    assert found.effective["nodeConfig"] == TEMPLATE["nodeConfig"]
    assert (found.is_monitored, found.pool and found.pool.revision) == (True, 3)


async def test_nodes_of_a_pool_are_listed_and_counted(store: Store) -> None:
    made = await put(store, pool(number=2))
    await put(store, pool("other"))
    for number, key in enumerate(("c", "a", "b"), 1):
        await store.put_node(member(key, number=min(number, 2)), None)
    await store.put_node(member("z", "other"), None)
    await store.put_node(node("alone"), None)
    page = await store.pool_nodes("/c", "edge", limit=2)
    assert ([each.key for each in page.nodes], page.after) == (["a", "b"], "b")
    page = await store.pool_nodes("/c", "edge", "b", 2)
    assert ([each.key for each in page.nodes], page.after) == (["c"], None)
    assert await store.count_pool(made) == PoolCounts(3, 1)
    assert await store.pool_counts("/c") == {"edge": PoolCounts(3, 1), "other": PoolCounts(1, 0)}
    (number,) = (await store.cluster_numbers()).values()
    query = FleetQuery((number,), pool="edge", search="site=oslo")
    assert [(each.key, each.pool, each.monitored) for each in await store.fleet(query, 1.0)] == [
        (key, "edge", True) for key in ("a", "b", "c")
    ]


async def test_pool_with_nodes_is_not_deleted(store: Store) -> None:
    made = await put(store, pool())
    await store.put_node(member("edge-1"), None)
    with pytest.raises(Conflict):
        await store.delete_pool(made)
    await store.delete_node("/c", "edge-1", None)
    await store.delete_pool(made, [event("pool.deleted", "/c/p")])
    assert await store.pool("/c", "edge") is None
    again = await put(store, pool(created=99.0))
    assert again.version > made.version
    assert await store.pool_revisions(again, 99) == (revision(pool(created=99.0)),)


async def test_changed_pool_is_not_deleted(store: Store) -> None:
    first = await put(store, pool())
    await put(store, pool(number=2), first)
    with pytest.raises(Conflict):
        await store.delete_pool(first)


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE pools SET template = '{}'",
        "UPDATE pools SET number = 1",
        "UPDATE pools SET code = ''",
        "UPDATE pools SET key = 'other'",
    ],
)
async def test_pool_that_was_changed_in_the_database_is_refused(store: Store, place: Place, attack: str) -> None:
    """An administrator of the database changes the template, so that the next apply brings it to all nodes."""
    await put(store, pool(number=2))
    await write(place, attack)
    with pytest.raises(RecordRefused):
        await store.pool("/c", "other" if "key" in attack else "edge")
    assert await store.pools("/c") == ()
    alarms = await store.audit(what="record.refused")
    assert [each.resource.partition("/flexNodePools/")[1] for each in alarms] == ["/flexNodePools/"]


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE pool_revisions SET template = '{}' WHERE number = 2",
        "UPDATE pool_revisions SET author = 'somebody' WHERE number = 2",
        "UPDATE pool_revisions SET template = (SELECT r.template FROM pool_revisions r WHERE r.number = 1),"
        " code = (SELECT r.code FROM pool_revisions r WHERE r.number = 1) WHERE number = 2",
        "DELETE FROM pool_revisions WHERE number = 2",
    ],
)
async def test_changed_or_deleted_revision_is_refused(store: Store, place: Place, attack: str) -> None:
    made = await put(store, pool(number=2), await put(store, pool()))
    await write(place, attack)
    with pytest.raises(RecordRefused):
        await store.pool_revision(made, 2)
    assert await store.pool_revision(made, 1)


async def test_revision_of_an_earlier_pool_is_refused(store: Store, place: Place) -> None:
    """The row has a valid code, because the service wrote it for a pool of the same name that was deleted."""
    first = await put(store, pool())
    await write(place, "CREATE TABLE kept AS SELECT * FROM pool_revisions")
    await store.delete_pool(first)
    again = await put(store, pool(created=99.0))
    await write(place, "DELETE FROM pool_revisions", "INSERT INTO pool_revisions SELECT * FROM kept")
    with pytest.raises(RecordRefused, match="earlier pool"):
        await store.pool_revision(again, 1)


async def test_earlier_content_of_a_pool_is_refused(store: Store, place: Place) -> None:
    first = await put(store, pool())
    await write(place, "CREATE TABLE kept AS SELECT * FROM pools")
    await put(store, pool(number=2), first)
    assert await store.pool("/c", "edge")
    await write(place, "DELETE FROM pools", "INSERT INTO pools SELECT * FROM kept")
    with pytest.raises(RecordRefused, match="older"):
        await store.pool("/c", "edge")


async def test_pools_end_with_their_cluster(store: Store, place: Place) -> None:
    await store.put_cluster(cluster(), None)
    await put(store, pool())
    assert await store.delete_cluster("/c")
    assert await store.pools("/c") == ()
    async with raw(place) as database:
        assert await database.rows("SELECT 1 FROM pool_revisions") == []
