"""From one machine to many replicas: everything in a file of SQLite's goes to PostgreSQL, in one transaction.

Also what is remembered of deleted nodes, so that configVersion goes on growing; and the audit with its numbers.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import databases
from aks_flex_node.rp.store.sqlite import migrate

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from asyncpg import Connection

TABLES = ("clusters", "nodes", "places", "fleet", "deliveries", "audit")
PAGE = 1000
BYTES = {("clusters", "connection"), ("nodes", "secrets"), ("deliveries", "bundle")}


async def copy(source: Path, address: str) -> dict[str, int]:
    """How many rows of each table; all of them are there, or none is. The tables must exist and be empty."""
    with closing(databases.sqlite(source)) as old:
        migrate(old)
        async with databases.postgres(address) as new:
            await _refuse_used(new)
            old.execute("BEGIN")  # all tables as of one moment
            async with new.transaction():
                moved = {table: await _copy_table(old, new, table) for table in TABLES}
                # The next event gets a number of its own.
                await new.execute(
                    "SELECT setval(pg_get_serial_sequence('audit', 'sequence'),"
                    " COALESCE(MAX(sequence), 0) + 1, false) FROM audit"
                )
            old.execute("ROLLBACK")
    return moved


async def _refuse_used(new: Connection) -> None:
    used = [table for table in TABLES if await new.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})")]  # noqa: S608
    if used:
        raise ConfigError(
            "database-not-empty",
            f"The database in PostgreSQL has rows already: {', '.join(used)}.",
            "Copy into an empty one. If it is the right one, it has been copied before: just start the service.",
        )


async def _copy_table(old: sqlite3.Connection, new: Connection, table: str) -> int:
    columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
    cursor = old.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608 - names of our own tables
    count = 0
    while rows := cursor.fetchmany(PAGE):
        records = [_record(table, columns, row) for row in rows]
        await new.copy_records_to_table(table, records=records, columns=columns)
        count += len(rows)
    return count


def _record(table: str, columns: list[str], row: tuple[object, ...]) -> tuple[object, ...]:
    """SQLite keeps the nothing of a deleted node as text, where PostgreSQL wants bytes."""
    return tuple(
        value.encode() if isinstance(value, str) and (table, column) in BYTES else value
        for column, value in zip(columns, row, strict=True)
    )
