"""Tests of SQLite only: file mode, backup, writer thread."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store import sqlite as sqlite_store
from aks_flex_rp.store.model import StoreUnavailable
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import event, node, record_authenticator, started

if TYPE_CHECKING:
    from pathlib import Path


def modes(room: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in room.iterdir()}


async def test_store_files_are_accessible_only_to_owner(tmp_path: Path, sqlite_store: SqliteStore) -> None:
    await sqlite_store.put_node(node(), None)
    assert modes(tmp_path) == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    await sqlite_store.backup(tmp_path / "copy.db")
    await sqlite_store.stop()
    assert modes(tmp_path) == {"store.db": 0o600, "copy.db": 0o600}


async def test_store_restricts_permissions_of_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(0o644)
    async with started(SqliteStore(path, record_authenticator())):
        assert modes(tmp_path)["store.db"] == 0o600


async def test_sqlite_uses_wal_and_full_synchronous_mode(tmp_path: Path) -> None:
    connection = sqlite_store.open_for_writing(tmp_path / "store.db")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    connection.close()
    assert found == ["wal", 2]


async def test_backup_under_load_is_consistent(tmp_path: Path, sqlite_store: SqliteStore) -> None:
    first = [sqlite_store.put_node(node(f"first-{one}"), None, [event()]) for one in range(200)]
    await asyncio.gather(*first)
    later = [sqlite_store.put_node(node(f"later-{one}"), None, [event()]) for one in range(500)]
    await asyncio.gather(*later, sqlite_store.backup(tmp_path / "copy.db"))
    await sqlite_store.backup(tmp_path / "copy-2.db")
    await sqlite_store.stop()
    for name, least in (("copy.db", 200), ("copy-2.db", 700)):
        async with started(SqliteStore(tmp_path / name, record_authenticator())) as copy:
            assert least <= await copy.count_nodes() == len(await copy.audit(limit=1000)) <= 700


async def test_stop_completes_pending_writes_and_refuses_new_ones(sqlite_store: SqliteStore) -> None:
    await asyncio.gather(*(sqlite_store.put_node(node(f"edge-{one}"), None) for one in range(300)))
    found = (await sqlite_store.nodes("/c", limit=300)).nodes
    writes = [asyncio.create_task(sqlite_store.put_node(replace(one, name="written"), one.etag)) for one in found]
    await asyncio.sleep(0)
    await sqlite_store.stop()
    await asyncio.gather(*writes)
    with pytest.raises(StoreUnavailable):
        await sqlite_store.put_node(node("late"), None)
    with pytest.raises(StoreUnavailable):
        await sqlite_store.node("/c", "late")
    assert not await sqlite_store.healthy()
    await sqlite_store.start()
    assert await sqlite_store.healthy()
    assert {one.name for one in (await sqlite_store.nodes("/c", limit=300)).nodes} == {"written"}


async def test_locked_database_file_is_a_transient_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", record_authenticator(), timeout=0.05)
    await store.start()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable) as caught:
        await store.put_node(node(), None)
    assert caught.value.retryable
    assert not caught.value.executed
    other.execute("COMMIT")
    other.close()
    await store.put_node(node(), None)
    await store.stop()
