"""The service's database without the service: for backups, for moving house, and for new keys.

The store hides how things are kept; what is in here works on exactly that, and on nothing else.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files
from aks_flex_node.rp.store import migrations
from aks_flex_node.rp.store.errors import Newer, StoreError
from aks_flex_node.rp.store.sqlite import connect, named

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from asyncpg import Connection

    from aks_flex_node.rp.settings import ServiceSettings

Row = tuple[Any, ...]


def postgres_address(settings: ServiceSettings) -> str:
    """Empty when the store is a file of SQLite's."""
    if settings.database_file:
        return private_files.read(settings.database_file).decode().strip()
    return settings.database or ""


class Database(Protocol):
    async def rows(self, text: str, *values: object) -> list[Row]: ...

    async def change(self, text: str, *values: object) -> int:
        """How many rows were changed."""
        ...


class SqliteDatabase:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def rows(self, text: str, *values: object) -> list[Row]:
        return self._connection.execute(text, named(values)).fetchall()

    async def change(self, text: str, *values: object) -> int:
        return self._connection.execute(text, named(values)).rowcount


class PostgresDatabase:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, text: str, *values: object) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(text, *values)]

    async def change(self, text: str, *values: object) -> int:
        return int((await self._connection.execute(text, *values)).rpartition(" ")[2])


@asynccontextmanager
async def opened(settings: ServiceSettings) -> AsyncIterator[Database]:
    """Whichever the settings name, as it is: nothing is made or migrated."""
    address = postgres_address(settings)
    if address:
        async with postgres(address) as connection:
            yield PostgresDatabase(connection)
        return
    found = sqlite(settings.sqlite_file)
    try:
        yield SqliteDatabase(found)
    finally:
        found.close()


def sqlite(file: Path) -> sqlite3.Connection:
    require(file)
    return connect(f"{file.absolute().as_uri()}?mode=rw")


def require(file: Path) -> None:
    if not file.exists():
        raise ConfigError(
            "database-missing", f"There is no database at {file}.", "Check --state; `aks-flex-rp init` makes one."
        )


@asynccontextmanager
async def postgres(address: str) -> AsyncIterator[Connection]:
    import asyncpg  # noqa: PLC0415 - one machine needs no driver

    try:
        connection = await asyncpg.connect(address, timeout=10)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        hint = "Check the address of the database, the user and the password."
        raise StoreError("store-refused", f"PostgreSQL cannot be used: {error}.", hint) from None
    try:
        yield connection
    finally:
        await connection.close()


async def schema_version(database: Database, *, postgres: bool) -> int:
    """0 where nothing is yet."""
    catalogue = (
        "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'schema_version'"
        if postgres
        else "SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'"
    )
    if not await database.rows(catalogue):
        return 0
    version = int((await database.rows(migrations.READ_VERSION))[0][0])
    if version > newest():
        raise Newer(version, newest())
    return version


def newest() -> int:
    return migrations.MIGRATIONS[-1].version
