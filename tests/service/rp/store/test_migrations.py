"""Tests of the schema on both databases: migrated to an invented later version, and refused when it is newer."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import asyncpg
import pytest

from aks_flex_rp.store import postgres as postgres_store
from aks_flex_rp.store import sqlite as sqlite_store
from aks_flex_rp.store.migrations import MIGRATIONS, Migration
from aks_flex_rp.store.model import SchemaTooNew
from tests.service.rp.store.builders import node, read, write

if TYPE_CHECKING:
    from tests.service.rp.store.conftest import Place

PRESENT = MIGRATIONS[-1].version
LATER = Migration(PRESENT + 1, ("ALTER TABLE nodes ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",))
BROKEN = Migration(PRESENT + 1, (*LATER.statements, "no statement at all"))
VERSIONS = "SELECT version FROM schema_version ORDER BY version"


async def migrate(place: Place, *later: Migration) -> None:
    """Migrates the database as a build with later migrations does."""
    steps = (*MIGRATIONS, *later)
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.address, isolation_level=None)) as file:
            sqlite_store.migrate(file, steps)
        return
    connection = await asyncpg.connect(place.address)
    try:
        await postgres_store.migrate(connection, steps)
    finally:
        await connection.close()


async def test_later_migration_keeps_the_records_and_runs_once(place: Place) -> None:
    store = place()
    await store.start()
    await store.put_node(node(), None)
    await store.stop()

    await asyncio.gather(*(migrate(place, LATER) for _ in range(3)))  # of three replicas
    await migrate(place, LATER)

    assert await read(place, VERSIONS) == [(PRESENT,), (LATER.version,)]
    assert await read(place, "SELECT key, note FROM nodes") == [("edge-1", "none")]


async def test_interrupted_migration_changes_nothing_and_is_repeated(place: Place) -> None:
    with pytest.raises((sqlite3.OperationalError, asyncpg.PostgresSyntaxError)):
        await migrate(place, BROKEN)
    assert await read(place, VERSIONS) == [(PRESENT,)]

    store = place()  # the present build still works
    await store.start()
    await store.put_node(node(), None)
    await store.stop()
    await migrate(place, LATER)
    assert await read(place, "SELECT key, note FROM nodes") == [("edge-1", "none")]


async def test_newer_schema_is_refused_and_not_changed(place: Place) -> None:
    await migrate(place, LATER)
    with pytest.raises(SchemaTooNew, match=f"schema version {LATER.version}"):
        await place().start()
    assert await read(place, VERSIONS) == [(PRESENT,), (LATER.version,)]


async def test_replica_of_the_present_build_works_with_a_later_schema(place: Place) -> None:
    """During a rolling update, a replica that runs already reads and writes what a later one has migrated."""
    present = place()
    await present.start()
    try:
        await present.put_node(node(), None)
        await migrate(place, LATER)
        await write(place, "UPDATE nodes SET note = 'of the later build'")
        assert await present.node("/c", "edge-1")
        await present.put_node(node(version=2), "edge-1-1")
        assert await present.delete_node("/c", "edge-1", None)
        await present.put_node(node("edge-2"), None)
    finally:
        await present.stop()
    notes = "SELECT key, note FROM nodes ORDER BY key"
    assert await read(place, notes) == [("edge-1", "of the later build"), ("edge-2", "none")]
