"""Writes the same row with only the driver, as a reference for the store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = (
    "properties TEXT, config TEXT, secrets {bytes}, system_data TEXT, join_state TEXT, version BIGINT, etag TEXT"
)
TABLE = f"CREATE TABLE bare (cluster TEXT, key TEXT, {COLUMNS}, PRIMARY KEY (cluster, key))"
INSERT = "INSERT INTO bare (cluster, key) VALUES ('cluster', {0})"
UPDATE = (
    "UPDATE bare SET properties = {0}, config = {1}, secrets = {2}, system_data = {3}, join_state = {4},"
    " version = {5}, etag = {6} WHERE cluster = {7} AND key = {8}"
)


def values(document: str, secret: bytes, number: int, key: str) -> tuple[object, ...]:
    return document, document, secret, "{}", "{}", number, str(number), "cluster", key


def sqlite_rate(path: Path, document: str, secret: bytes, together: int, seconds: float) -> float:
    """Returns the writes per second for a number of writes in each commit, with WAL and synchronous=FULL."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(TABLE.format(bytes="BLOB"))
    connection.executemany(INSERT.format("?"), [(str(number),) for number in range(together)])
    text, done, start = UPDATE.format(*"?" * 9), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        connection.execute("BEGIN IMMEDIATE")
        for number in range(together):
            connection.execute(text, values(document, secret, done, str(number)))
            done += 1
        connection.execute("COMMIT")
    took = time.perf_counter() - start
    connection.close()
    return done / took


async def postgres_rate(
    dsn: str, document: str, secret: bytes, connections: int, seconds: float, together: int = 1
) -> float:
    """Returns the writes per second for numbers of connections and of writes in each commit, as one pipeline."""
    opened = [await asyncpg.connect(dsn) for _ in range(connections)]
    await opened[0].execute(TABLE.format(bytes="BYTEA"))
    await opened[0].executemany(INSERT.format("$1"), [(str(number),) for number in range(connections * together)])
    text, done, start = UPDATE.format(*(f"${number}" for number in range(1, 10))), 0, time.perf_counter()

    async def write(connection: asyncpg.Connection, keys: range) -> None:
        nonlocal done
        while time.perf_counter() - start < seconds:
            rows = [values(document, secret, done, str(key)) for key in keys]
            await (connection.executemany(text, rows) if together > 1 else connection.execute(text, *rows[0]))
            done += together

    shares = (range(first, first + together) for first in range(0, connections * together, together))
    await asyncio.gather(*map(write, opened, shares))
    took = time.perf_counter() - start
    for connection in opened:
        await connection.close()
    return done / took
