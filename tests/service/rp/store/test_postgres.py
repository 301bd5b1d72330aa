"""Tests of PostgreSQL only: unavailable server, replicas."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.store.changes import Disconnected, NodeWritten, Resync
from aks_flex_rp.store.model import StoreError, StoreUnavailable
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from tests.remedies.catalogue import advice
from tests.service.rp.store.builders import event, next_of, node, record_authenticator, started, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_rp.store.changes import StoreChange
    from tests.service.rp.store.conftest import PostgresPlace
    from tests.service.rp.store.servers import PostgresServer

PATIENCE = 120.0
LISTENERS = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


@dataclass
class Load:
    """Writers and readers that continue while the server fails."""

    store: PostgresStore
    written: dict[str, int] = field(default_factory=dict)
    given_up: int = 0  # writes that were not executed
    ending: bool = False

    async def write(self, key: str) -> None:
        while not self.ending:
            version = self.written.get(key, 0)
            try:
                await self.store.put_node(node(key, version + 1), f"{key}-{version}" if version else None, [event()])
                self.written[key] = version + 1
            except StoreUnavailable as error:
                self.given_up += not error.executed
                await self.look(key, version)

    async def look(self, key: str, version: int) -> None:
        """Reads the node after a lost response, to find out whether the write was executed."""
        found = await self.store.node("/c", key)
        assert (found.version if found else 0) in {version, version + 1}
        self.written[key] = found.version if found else 0

    async def read(self, key: str) -> None:
        while not self.ending:
            await self.store.node("/c", key)

    async def more(self) -> None:
        """Waits until every writer has written several times."""
        before = dict(self.written)
        end = time.monotonic() + PATIENCE
        while any(self.written[key] < before.get(key, 0) + 5 for key in self.written) or len(self.written) < 20:
            assert time.monotonic() < end, f"no writer came further than {self.written}"
            await asyncio.sleep(0.01)


async def contains_change(changes: AsyncIterator[StoreChange], awaited: StoreChange) -> bool:
    """Returns whether a change is among those of a load that has ended."""
    try:
        while await asyncio.wait_for(changes.__anext__(), 5) != awaited:
            pass
    except asyncio.TimeoutError:
        return False
    return True


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT])
async def test_store_recovers_when_postgres_restarts_under_load(
    postgres: PostgresPlace, server: PostgresServer, sig: signal.Signals
) -> None:
    store = postgres()
    await store.start()
    load, changes = Load(store), store.changes()
    tasks = [asyncio.create_task(load.write(f"edge-{one}")) for one in range(20)]
    tasks += [asyncio.create_task(load.read(f"edge-{one}")) for one in range(5)]
    await load.more()
    await asyncio.to_thread(server.stop, sig)
    await asyncio.to_thread(server.start)
    await load.more()
    load.ending = True
    await asyncio.gather(*tasks)
    assert await contains_change(changes, Resync())
    assert load.given_up == 0, "the store itself tries again what was not executed"
    for key, version in load.written.items():
        assert await store.node("/c", key) == node(key, version)
    assert len(await store.audit(limit=1_000_000)) == sum(load.written.values())
    await store.stop()


async def test_disconnected_listener_resyncs_and_receives_changes_again(
    postgres: PostgresPlace, server: PostgresServer
) -> None:
    async with started(postgres()) as one, started(postgres()) as other:
        changes = one.changes()
        assert await asyncio.to_thread(server.query, LISTENERS) == "2"
        told = await next_of(changes)
        assert told in (Disconnected(), Resync())  # a late reader sees only the last event
        if told == Disconnected():
            assert await next_of(changes) == Resync()
        await other.put_node(node(), None)
        assert await next_of(changes) == NodeWritten("/c", "edge-1", 1)


@pytest.mark.remedy("database-unavailable")
async def test_unreachable_postgres_is_a_transient_error(postgres: PostgresPlace, server: PostgresServer) -> None:
    store = PostgresStore(parse_address(postgres.address, {}), record_authenticator(), timeout=3)
    await store.start()
    assert await store.healthy()
    await asyncio.to_thread(server.stop)
    try:
        assert not await store.healthy()
        for request in (store.node("/c", "edge-1"), store.put_node(node(), None), store.record(event())):
            with pytest.raises(StoreUnavailable) as caught:
                await request
            assert (caught.value.name, caught.value.retryable) == ("database-unavailable", True)
            assert not caught.value.executed
        with pytest.raises(StoreUnavailable):
            await PostgresStore(parse_address(postgres.address, {}), record_authenticator(), timeout=3).start()
    finally:
        await asyncio.to_thread(server.start)
    advice("database-unavailable", "Restore access to the database or free disk space. The service recovers")
    await store.put_node(node(), None)
    assert await store.healthy()
    await store.stop()
    with pytest.raises(StoreUnavailable):
        await store.put_node(node("late"), None)
    assert not await store.healthy()


async def test_replicas_starting_together_create_tables_once(postgres: PostgresPlace) -> None:
    replicas = [postgres() for _ in range(5)]
    await asyncio.gather(*(one.start() for one in replicas))
    await replicas[0].put_node(node(), None)
    assert [await one.count_nodes() for one in replicas] == [1] * 5
    await asyncio.gather(*(one.stop() for one in replicas))


async def test_postgres_store_enforces_synchronous_commit(postgres: PostgresPlace) -> None:
    database = postgres.address.rpartition("/")[2]
    await write(postgres, f"ALTER DATABASE {database} SET synchronous_commit = off")
    async with started(postgres()) as store:
        assert [row[0] for row in await store._read("SHOW synchronous_commit")] == ["on"]


async def test_invalid_database_address_is_a_permanent_error(postgres: PostgresPlace) -> None:
    wrongs = {postgres.address + "_not": "database-error", "not an address": "database-address-invalid"}
    for wrong, name in wrongs.items():
        with pytest.raises(StoreError) as caught:
            await PostgresStore(parse_address(wrong, {}), record_authenticator(), timeout=0.3).start()
        assert caught.value.name == name
        assert not caught.value.retryable
