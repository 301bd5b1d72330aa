from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from aks_flex_rp.store.model import Conflict
from tests.service.rp.store.builders import event, node

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import PostgresPlace

WRITERS = 100


async def won(store: Store, writer: int, version: int, expected: str | None) -> bool:
    try:
        await store.put_node(node(version=version, etag=f"{version}-{writer}"), expected, [event(str(writer))])
    except Conflict:
        return False
    return True


async def test_one_of_many_concurrent_writes_to_same_node_succeeds(replicas: tuple[Store, Store]) -> None:
    expected, winners = None, []
    for version in range(1, 6):
        results = await asyncio.gather(*(won(replicas[one % 2], one, version, expected) for one in range(WRITERS)))
        assert results.count(True) == 1
        winners.append(str(results.index(True)))
        expected = f"{version}-{winners[-1]}"
    found = await replicas[0].node("/c", "edge-1")
    assert found
    assert found.etag == expected
    assert [one.what for one in await replicas[0].audit()] == winners[::-1]


async def test_all_concurrent_writes_of_a_group_commit_are_stored(store: Store) -> None:
    await asyncio.gather(*(store.put_node(node(f"edge-{one}"), None, [event()]) for one in range(1500)))
    assert await store.count_nodes() == 1500
    assert len(await store.audit(limit=2000)) == 1500


async def test_failing_write_does_not_affect_others_in_group_commit(store: Store) -> None:
    too_large = node("edge-7", version=2**70)
    without_time = [event(at=None)]
    writes = [store.put_node(node(f"edge-{one}"), None, [event()]) for one in range(5)]
    writes += [store.put_node(too_large, None, [event()]), store.put_node(node("edge-8"), None, without_time)]
    writes += [store.put_node(node(f"edge-{one}"), None, [event()]) for one in range(10, 15)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [result is None for result in results] == [True] * 5 + [False] * 2 + [True] * 5
    assert await store.count_nodes() == len(await store.audit()) == 10
    assert await store.node("/c", "edge-7") is None
    assert await store.node("/c", "edge-8") is None, "a node without its audit is half a write"
    with pytest.raises(Conflict):
        await store.put_node(node("edge-1"), None)


async def test_reads_return_every_acknowledged_write(store: Store) -> None:
    async def write_and_read(key: str) -> None:
        for version in range(1, 20):
            await store.put_node(node(key, version), f"{key}-{version - 1}" if version > 1 else None)
            assert await store.node("/c", key) == node(key, version)

    await asyncio.gather(*(write_and_read(f"edge-{one}") for one in range(10)))


async def test_heartbeats_and_reports_on_two_replicas_do_not_conflict(replicas: tuple[Store, Store]) -> None:
    """Both replicas write the same nodes in opposite order."""
    names = [f"edge-{one}" for one in range(20)]
    await asyncio.gather(*(replicas[0].put_node(node(name), None) for name in names))

    async def disturb(store: Store, order: list[str], moment: float) -> None:
        await asyncio.gather(
            store.seen([("/c", name, moment) for name in order]),
            *(store.report("/c", name, {"at": moment}, moment) for name in order),
        )

    for moment in range(1, 11):
        await asyncio.gather(disturb(replicas[0], names, moment), disturb(replicas[1], names[::-1], moment))
    page = await replicas[0].nodes("/c")
    assert {one.last_seen for one in page.nodes} == {10.0}
    assert {one.status["at"] for one in page.nodes} == {10.0}


async def test_replicas_do_not_deadlock_regardless_of_cluster_order(postgres: PostgresPlace) -> None:
    """A cluster's number depends on its creation, its position in a batch on its name; the orders can differ."""
    stores = [postgres(), postgres()]
    await asyncio.gather(*(store.start() for store in stores))
    for name in ("/z", "/a"):
        for number in range(10):
            properties = {"continuousMonitoring": True}
            await stores[0].put_node(node(f"edge-{number}", cluster=name, properties=properties), None)
    nodes = [(name, f"edge-{number}") for name in ("/z", "/a") for number in range(10)]
    await stores[0].seen([(*each, 1.0) for each in nodes])

    async def note(store: Store, before: float) -> None:
        found = [each for silent in (True, False) for each in await store.unnoted_silences(before, 20, silent=silent)]
        await asyncio.gather(*(store.note_silence(each, before) for each in found))

    for moment in range(2, 40):
        await asyncio.gather(
            stores[0].seen([(*each, moment) for each in nodes]),
            *(stores[1].report(*each, {"at": moment}, moment) for each in nodes),
            note(stores[0], moment + 0.5),
            note(stores[1], moment - 0.5),
        )
    await asyncio.gather(*(store.stop() for store in stores))
    connection = await asyncpg.connect(postgres.address)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    found = await connection.fetchval(deadlocks)
    await connection.close()
    assert found == 0
