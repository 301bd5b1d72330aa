"""Attacks of a database administrator on the mark of a deleted node (`gone`), on both databases.

A managed node unbootstraps when the service says that its resource was deleted.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp import record_review
from aks_flex_rp.raw_database import SqliteDatabase
from aks_flex_rp.store.fleet import FleetQuery
from aks_flex_rp.store.model import RecordRefused
from aks_flex_rp.store.sqlite import connect
from tests.service.rp.store.builders import node, record_authenticator, write

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.conftest import Place, SqlitePlace

NULL_ALLOWED = {
    "sqlite": (
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_schema SET sql = replace(sql, 'gone INTEGER NOT NULL', 'gone INTEGER') WHERE name = 'nodes'",
    ),
    "postgres": ("ALTER TABLE nodes ALTER COLUMN gone DROP NOT NULL",),
}


async def mark(place: Place, value: str) -> None:
    if value == "NULL":
        await write(place, *NULL_ALLOWED[place.kind])
    await write(place, f"UPDATE nodes SET gone = {value} WHERE key = 'edge-1'")  # noqa: S608 - the attack


async def assert_refused(store: Store) -> None:
    with pytest.raises(RecordRefused, match="neither 0 nor 1"):
        await store.node("/c", "edge-1")
    with pytest.raises(RecordRefused, match="neither 0 nor 1"):
        await store.last_known_node("/c", "edge-1")


@pytest.mark.parametrize("value", ["NULL", "2", "-1"])
async def test_invalid_deletion_mark_is_refused_and_alarmed(place: Place, value: str) -> None:
    """Attack: the row is neither a node nor a deleted one in SQL, but authentic, so the node is told to leave."""
    before = place()
    await before.start()
    await before.put_node(node(identity="me"), None)
    await before.stop()
    await mark(place, value)
    store = place()
    await store.start()
    try:
        await assert_refused(store)
        await store.repair_fleet()
        numbers = tuple((await store.cluster_numbers()).values())
        assert (await store.fleet(FleetQuery(numbers), 1.0))[0].trouble == ("RecordRefused",), "still in lists"
        assert len(await store.audit(what="record.refused")) == 1
        assert await asyncio.wait_for(store.delete_node("/c", "edge-1", None), 10), "does not wait for ever"
        known = await store.last_known_node("/c", "edge-1")
        assert known.deleted
        await store.put_node(node(version=known.version + 1), None)
        assert await store.node("/c", "edge-1")
    finally:
        await store.stop()


@pytest.mark.parametrize("value", ["''", "x''", "'text'", "x'01'", "0.5"])
async def test_deletion_mark_of_another_type_is_refused(sqlite: SqlitePlace, value: str) -> None:
    """Attack: SQLite stores any type in a column."""
    store = sqlite()
    await store.start()
    try:
        await store.put_node(node(identity="me"), None)
        await mark(sqlite, value)
        await assert_refused(store)
    finally:
        await store.stop()


async def test_review_shows_an_invalid_deletion_mark(sqlite: SqlitePlace) -> None:
    store = sqlite()
    await store.start()
    await store.put_node(node(), None)
    await store.stop()
    await mark(sqlite, "''")
    codes = record_authenticator().codes
    with closing(connect(f"file:{sqlite.address}")) as connection:
        database = SqliteDatabase(connection)
        [found] = [each async for each in record_review.refused_records(database, codes)]
        assert (found.name, found.state) == ("edge-1", "wrong")
        with pytest.raises(ConfigError, match="neither 0 nor 1"):
            await record_review.accept(database, codes, "edge-1", found.digest, 1e9)
