"""Fixtures: both stores for every test, SQLite in a new file and PostgreSQL in a new database of one server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.store.builders import record_authenticator, started
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from aks_flex_rp.store.base import Store
    from tests.service.rp.store.servers import PostgresServer

KINDS = ("sqlite", "postgres")


class Place(Protocol):
    """The location of a store: `address` for another process; a call returns another store object."""

    kind: str
    address: str

    def __call__(self) -> Store: ...


class SqlitePlace:
    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.address = str(path)

    def __call__(self) -> SqliteStore:
        return SqliteStore(self.address, record_authenticator())


class PostgresPlace:
    kind = "postgres"

    def __init__(self, dsn: str) -> None:
        self.address = dsn

    def __call__(self) -> PostgresStore:
        return PostgresStore(parse_address(self.address, {}), record_authenticator(), connections=5, timeout=60)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "store.db")


@pytest.fixture
def postgres(server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(server.new_database())


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(place: Place) -> AbstractAsyncContextManager[Store]:
    """Returns a store that runs during a coroutine test."""
    return started(place())


@pytest.fixture
def replicas(place: Place) -> AbstractAsyncContextManager[tuple[Store, Store]]:
    """Returns two stores of one database, which run during a coroutine test."""

    @asynccontextmanager
    async def both() -> AsyncIterator[tuple[Store, Store]]:
        async with started(place()) as one, started(place()) as other:
            yield one, other

    return both()


@pytest.fixture
def sqlite_store(sqlite: SqlitePlace) -> AbstractAsyncContextManager[SqliteStore]:
    return started(sqlite())
