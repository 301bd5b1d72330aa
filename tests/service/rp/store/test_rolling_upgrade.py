"""Tests of a store of the previous release, and of one of its replicas next to new ones, on both databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import asyncpg

from aks_flex_rp.store import migrations
from aks_flex_rp.store import postgres as postgres_store
from aks_flex_rp.store import sqlite as sqlite_store
from aks_flex_rp.store.fleet import FleetQuery
from tests.service.rp.store.test_fleet import NOW, asked, member, told

if TYPE_CHECKING:
    from aks_flex_rp.store.protocol import Store
    from tests.service.rp.store.conftest import Place

PROPERTIES = '{"nodeConfig":{"labels":{"site":"oslo"}},"continuousMonitoring":true}'
CONFIG = '{"kubernetes":{"version":"1.34.4"}}'
READY = '{"conditions":[{"type":"Ready","status":"True"}],"kubeletVersion":"v1.34.4"}'


def created(key: str, join: str = '{"state":"Joined"}', status: str = READY, secrets: str = "") -> str:
    """Returns the SQL with which the previous release creates a node. `secrets` is text."""
    columns = "cluster, key, name, version, etag, properties, config, secrets, system_data, join_state, status"
    documents = f"'{PROPERTIES}', '{CONFIG}', CAST('{secrets}' AS blob), '{{}}', '{join}', '{status}'"
    return (
        f"INSERT INTO nodes ({columns}, node_identity, created, gone, revision)"  # noqa: S608 - a test's own
        f" VALUES ('/c', '{key}', '{key.title()}', 7, 'e', {documents}, '', 1.5, 0, 1)"
    )


async def write(place: Place, *statements: str, steps: int = 0) -> None:
    """Executes SQL of another release, after this many migrations of the schema."""
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.address, isolation_level=None)) as file:
            if steps:
                sqlite_store.migrate(file, migrations.MIGRATIONS[:steps])
            for each in statements:
                file.execute(each)
        return
    connection = await asyncpg.connect(place.address)
    try:
        if steps:
            await postgres_store.migrate(connection, migrations.MIGRATIONS[:steps])
        for each in statements:
            await connection.execute(each)
    finally:
        await connection.close()


async def test_store_of_previous_release_is_migrated_with_fleet(place: Place) -> None:
    await write(place, created("edge-1"), "INSERT INTO sightings VALUES ('/c', 'edge-1', 4321.0)", steps=1)
    store = place()
    await store.start()
    try:
        kept = await store.node("/c", "edge-1")
        assert kept is not None
        assert kept.last_seen == 4321.0
        assert await store.refresh_fleet() == 1
        assert await store.refresh_fleet() == 0
        (found,) = await asked(store, search="site=oslo")
        assert (found.name, found.state, found.last_seen, found.version) == ("Edge-1", "Ready", 4321.0, 7)
        assert await store.repair_fleet() == 0
    finally:
        await store.stop()


async def test_replica_of_previous_release_can_still_read_and_write(store: Store, place: Place) -> None:
    await store.put_node(member("edge-1"), None)
    await write(
        place,
        "INSERT INTO sightings VALUES ('/c', 'edge-1', 4321.0)",
        "SELECT n.key, COALESCE(s.last_seen, 0) FROM nodes n LEFT JOIN sightings s"
        " ON s.cluster = n.cluster AND s.key = n.key",
    )


async def test_fleet_repair_includes_writes_of_previous_release(place: Place) -> None:
    await write(place, "INSERT INTO clusters VALUES ('/x', '/x', '{}', CAST('' AS blob), 1)", steps=3)
    store = place()
    await store.start()
    try:
        await _repair_writes_of_previous_release(store, place)
    finally:
        await store.stop()


async def _repair_writes_of_previous_release(store: Store, place: Place) -> None:
    # A trigger of PostgreSQL clears the codes of rows that an earlier release changes. SQLite has no such replicas.
    changed = "revision = revision + 1" + (", code = ''" if place.kind == "sqlite" else "")
    for key in ("edge-1", "edge-2", "edge-3"):
        await store.put_node(member(key, "Created"), None)
        await store.seen([("/c", key, 4000.0)])
    await write(
        place,
        created("edge-0"),
        f"UPDATE nodes SET {changed}, join_state = '{{\"state\":\"Joined\"}}', status = '{READY}'"  # noqa: S608
        " WHERE key = 'edge-1'",
        f"UPDATE nodes SET {changed}, gone = 1, etag = '', properties = '', config = '', status = ''"  # noqa: S608
        " WHERE key = 'edge-2'",
    )
    assert await store.sign_upgraded() == 3
    assert await store.repair_fleet() == 3
    shown = [(each.key, each.state, each.kubelet, each.last_seen) for each in await asked(store)]
    assert shown == [
        ("edge-0", "Ready", "1.34.4", 0.0),
        ("edge-1", "Ready", "1.34.4", 4000.0),
        ("edge-3", "Created", "", 4000.0),
    ]
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
    places = tuple((await store.cluster_numbers()).values())
    assert await store.count_fleet(FleetQuery(places), NOW) == 249
