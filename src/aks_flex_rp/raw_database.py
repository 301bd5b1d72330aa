"""Direct access to the database without the service: schema version, rows, and the copy from SQLite to PostgreSQL.

Used by backup, key rotation and `aks-flex-rp migrate`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from aks_flex_node.errors import ConfigError
from aks_flex_rp import private_files
from aks_flex_rp.store import migrations
from aks_flex_rp.store.model import SchemaTooNew, StoreError
from aks_flex_rp.store.postgres_address import parse_address, tls_failure
from aks_flex_rp.store.sqlite import connect, fetch_all, named_parameters, store_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from asyncpg import Connection

    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.postgres_address import PostgresAddress


CONNECT_SECONDS = 10.0
Row = tuple[Any, ...]


def postgres_text(settings: ServiceSettings) -> str:
    """Returns the PostgreSQL address as written, or an empty string when the store is a SQLite file."""
    if settings.database_file:
        return private_files.read(settings.database_file).decode().strip()
    return settings.database or ""


def postgres_address(settings: ServiceSettings) -> PostgresAddress | None:
    """Returns the PostgreSQL address, or None when the store is a SQLite file."""
    text = postgres_text(settings)
    return parse_address(text, os.environ, insecure=settings.database_insecure) if text else None


class Database(Protocol):
    is_postgres: ClassVar[bool]

    async def rows(self, text: str, *values: object) -> list[Row]: ...

    async def change(self, text: str, *values: object) -> int:
        """Executes a statement and returns the number of changed rows."""
        ...


@dataclass
class SqliteDatabase:
    is_postgres: ClassVar[bool] = False

    connection: sqlite3.Connection

    async def rows(self, text: str, *values: object) -> list[Row]:
        return fetch_all(self.connection, text, values)

    async def change(self, text: str, *values: object) -> int:
        return self.connection.execute(text, named_parameters(values)).rowcount


@dataclass
class PostgresDatabase:
    is_postgres: ClassVar[bool] = True

    connection: Connection

    async def rows(self, text: str, *values: object) -> list[Row]:
        return [tuple(row) for row in await self.connection.fetch(text, *values)]

    async def change(self, text: str, *values: object) -> int:
        return int((await self.connection.execute(text, *values)).rpartition(" ")[2])


@asynccontextmanager
async def open_database(settings: ServiceSettings, source: Path | None = None) -> AsyncIterator[Database]:
    """Opens the SQLite file, or else the database that the settings name, without creating or migrating it."""
    address = None if source else postgres_address(settings)
    if address:
        async with open_postgres(address) as connection:
            yield PostgresDatabase(connection)
        return
    found = open_sqlite(source or settings.sqlite_file)
    try:
        yield SqliteDatabase(found)
    except sqlite3.DatabaseError as error:
        raise store_error(error) from None
    finally:
        found.close()


@asynccontextmanager
async def open_migrated_database(settings: ServiceSettings) -> AsyncIterator[Database]:
    """Opens the database. Raises ConfigError if its schema is not migrated yet."""
    async with open_database(settings) as database:
        version = await schema_version(database)
        if version < newest_schema_version():
            raise ConfigError(
                "database-schema-older",
                f"The database has schema version {version}, but this command needs version "
                f"{newest_schema_version()}.",
                "Run `aks-flex-rp migrate` first.",
            )
        yield database


def open_sqlite(file: Path) -> sqlite3.Connection:
    require_file(file)
    return connect(f"{file.absolute().as_uri()}?mode=rw")


def require_file(file: Path) -> None:
    if not file.exists():
        raise ConfigError(
            "database-not-found",
            f"No database was found at {file}.",
            "Check `--state`, or run `aks-flex-rp init` to create one.",
        )


@asynccontextmanager
async def open_postgres(address: PostgresAddress) -> AsyncIterator[Connection]:
    import asyncpg  # noqa: PLC0415 - the driver is not needed with SQLite

    from aks_flex_rp.store.postgres import describe_cause  # noqa: PLC0415

    try:
        connection = await asyncpg.connect(**address.connect_options(), timeout=CONNECT_SECONDS)
    except (OSError, ValueError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if unsafe := tls_failure(error):
            raise unsafe from None
        hint = "Check the address of the database, the user and the password."
        raise StoreError(
            "database-error", f"Cannot use the PostgreSQL database: {describe_cause(error)}.", hint
        ) from None
    try:
        yield connection
    finally:
        await connection.close()


async def schema_version(database: Database) -> int:
    """Returns the schema version, or 0 for an empty database."""
    catalogue = (
        "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'schema_version'"
        if database.is_postgres
        else "SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'"
    )
    if not await database.rows(catalogue):
        return 0
    version = int((await database.rows(migrations.READ_VERSION))[0][0])
    if version > newest_schema_version():
        raise SchemaTooNew(version, newest_schema_version())
    return version


def has_records(settings: ServiceSettings, source: Path | None = None) -> bool:
    """Returns whether the database contains nodes or clusters, or the SQLite file `source` if one is given.

    Blocks. It runs in a thread, because the caller may be in an event loop, and only before the first key exists.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _has_records(settings, source)).result()


async def _has_records(settings: ServiceSettings, source: Path | None) -> bool:
    postgres = source is None and bool(postgres_address(settings))
    if not postgres and not (source or settings.sqlite_file).exists():
        return False
    async with open_database(settings, source) as database:
        if not await schema_version(database):
            return False
        return bool((await database.rows(migrations.HAS_RECORDS))[0][0])


def newest_schema_version() -> int:
    return migrations.MIGRATIONS[-1].version


COPIED_TABLES = (
    *("clusters", "nodes", "cluster_numbers", "fleet", "deliveries", "audit", "identity_owners"),
    *("pools", "pool_revisions", "enrolments", "enrolled_machines"),
    *("rollouts", "rollout_nodes", "rollout_signals", "pool_versions"),
)
ROWS_PER_COPY = 1000
BINARY_COLUMNS = {("clusters", "connection"), ("nodes", "secrets"), ("deliveries", "bundle")}


async def copy_to_postgres(source: Path, address: PostgresAddress) -> dict[str, int]:
    """Copies all tables in one transaction and returns the number of rows of each.

    The tables must exist and be empty.
    """
    with closing(open_sqlite(source)) as old:
        async with open_postgres(address) as new:
            used = [table for table in COPIED_TABLES if await new.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})")]  # noqa: S608
            if used:
                raise ConfigError(
                    "database-not-empty",
                    f"The PostgreSQL database already contains rows: {', '.join(used)}.",
                    "Use an empty database. If this one was already copied, start the service.",
                )
            old.execute("BEGIN")  # reads all tables from one snapshot
            async with new.transaction():
                moved = {table: await _copy_table(old, new, table) for table in COPIED_TABLES}
                for table in ("audit", "rollout_signals"):  # the next row must get an unused number
                    await new.execute(
                        f"SELECT setval(pg_get_serial_sequence('{table}', 'sequence'),"  # noqa: S608 - our own tables
                        f" COALESCE(MAX(sequence), 0) + 1, false) FROM {table}"
                    )
            old.execute("ROLLBACK")
    return moved


async def _copy_table(old: sqlite3.Connection, new: Connection, table: str) -> int:
    columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
    cursor = old.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608 - names of our own tables
    count = 0
    while rows := cursor.fetchmany(ROWS_PER_COPY):
        # The empty secrets of a deleted node are text in SQLite, and bytes in PostgreSQL.
        records = [
            tuple(
                value.encode() if isinstance(value, str) and (table, column) in BINARY_COLUMNS else value
                for column, value in zip(columns, row, strict=True)
            )
            for row in rows
        ]
        await new.copy_records_to_table(table, records=records, columns=columns)
        count += len(rows)
    return count
