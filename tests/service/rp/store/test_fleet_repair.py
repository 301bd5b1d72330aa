"""Tests of the repair of fleet rows that differ from their nodes, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.store.fleet import FleetQuery
from tests.service.rp.store.builders import write
from tests.service.rp.store.test_fleet import NOW, asked, member, told

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import Place


async def test_rows_that_were_changed_added_or_deleted_are_repaired(store: Store, place: Place) -> None:
    for key in ("edge-0", "edge-1", "edge-3"):
        await store.put_node(member(key, "Created"), None)
        await store.seen([("/c", key, 4000.0)])
    before = await asked(store)
    await write(
        place,
        "UPDATE fleet SET join_state = 'Failed', pool = 'other', pool_revision = 9 WHERE key = 'edge-1'",
        "INSERT INTO fleet SELECT cluster_number, 'edge-2', name, version, created, labels, join_state, failure,"
        " url_expires, monitored, desired_version, pool, pool_revision, ready, cause, problems, kubelet, applied,"
        " silent, last_seen FROM fleet WHERE key = 'edge-0'",
        "DELETE FROM fleet WHERE key = 'edge-3'",
    )
    assert [each.key for each in await asked(store)] == ["edge-0", "edge-1", "edge-2"]
    await store.repair_fleet()  # raises the alarm for edge-2, whose node is missing
    assert [each.key for each in await asked(store)] == ["edge-0", "edge-1", "edge-3"]
    assert (await asked(store))[:2] == before[:2], "also the times of the last polls"
    assert await store.repair_fleet() == 0


async def test_fleet_repair_does_not_change_consistent_fleet(store: Store) -> None:
    for number in range(250):
        key = f"edge-{number}"
        await store.put_node(member(key, cluster=f"/c{number % 3}"), None)
        await store.report(f"/c{number % 3}", key, told("False", message="odd \x00 \ud800 ü"), 4990.0)
    await store.delete_node("/c0", "edge-0", None)
    before = await asked(store, limit=1000)
    assert await store.repair_fleet() == 0
    assert await asked(store, limit=1000) == before
    numbers = tuple((await store.cluster_numbers()).values())
    assert await store.count_fleet(FleetQuery(numbers), NOW) == 249
