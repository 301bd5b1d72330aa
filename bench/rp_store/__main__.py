"""Alternates writes of nodes with the store and of rows with the driver; the last line is one JSON object.

Every counted write is durable. `bare` commits each row separately, as is usual with a driver; `together` is the upper
bound, a loop that has all writes available and puts as many into each commit as there are writers. The store also
accepts writes from many callers, encodes documents, checks the etag and wakes waiting polls; `audited` also writes a
line of the audit log in the same transaction.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from aks_flex_rp.store.model import AuditAction, AuditEvent, Node
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from aks_flex_rp.store.sqlite import SqliteStore
from bench.figures import medians, print_result, print_round
from bench.options import Option, parse
from bench.rp_store.bare_drivers import postgres_rate, sqlite_rate
from tests.service.rp.store.builders import record_authenticator
from tests.service.rp.store.servers import PostgresServer, postgres_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from aks_flex_rp.store.base import Store

OPTIONS = (
    Option("--rounds", 3),
    Option("--seconds", 3.0, "duration of each measurement in a round"),
    Option("--writers", 64, "number of concurrent writers"),
)
CONNECTIONS = 10
DOCUMENT = {"nodeConfig": {f"setting-{number}": "x" * 40 for number in range(16)}}  # about 1 KiB
SECRET = bytes(200)


async def store_rate(store: Store, writers: int, seconds: float, *, audited: bool = False) -> float:
    """Returns the nodes written per second by concurrent writers, each with its own node."""
    done, start = 0, time.perf_counter()

    async def write(key: str) -> None:
        nonlocal done
        expected = None
        events = [AuditEvent(time.time(), "bench", AuditAction.WRITE, f"/cluster/{key}")] if audited else []
        while time.perf_counter() - start < seconds:
            node = Node("cluster", key, key, done, f"{key}-{done}", DOCUMENT, DOCUMENT, SECRET)
            await store.put_node(node, expected, events)
            expected, done = node.etag, done + 1

    await store.start()
    await asyncio.gather(*(write(f"{audited}-{number}") for number in range(writers)))
    took = time.perf_counter() - start
    await store.stop()
    return done / took


def sqlite_round(options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    text, seconds = json.dumps(DOCUMENT), options.seconds
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        yield "bare", sqlite_rate(directory / "bare", text, SECRET, 1, seconds)
        yield "together", sqlite_rate(directory / "together", text, SECRET, options.writers, seconds)
        yield (
            "ours",
            uvloop.run(store_rate(SqliteStore(directory / "ours", record_authenticator()), options.writers, seconds)),
        )
        store = SqliteStore(directory / "audited", record_authenticator())
        yield "audited", uvloop.run(store_rate(store, options.writers, seconds, audited=True))


def postgres_round(options: argparse.Namespace, server: PostgresServer) -> Iterator[tuple[str, float]]:
    text, seconds = json.dumps(DOCUMENT), options.seconds
    yield "bare", uvloop.run(postgres_rate(server.new_database(), text, SECRET, CONNECTIONS, seconds))
    half = options.writers // 2
    yield "together", uvloop.run(postgres_rate(server.new_database(), text, SECRET, 2, seconds, together=half))
    store = PostgresStore(parse_address(server.new_database(), {}), record_authenticator(), connections=CONNECTIONS)
    yield "ours", uvloop.run(store_rate(store, options.writers, seconds))
    store = PostgresStore(parse_address(server.new_database(), {}), record_authenticator(), connections=CONNECTIONS)
    yield "audited", uvloop.run(store_rate(store, options.writers, seconds, audited=True))


def report(name: str, number: int, found: dict[str, float]) -> dict[str, float]:
    found |= {"ratio": found["ours"] / found["bare"], "ratio_together": found["ours"] / found["together"]}
    print_round(f"{name} {number}", found)
    return found


def main() -> None:
    options = parse("rp_store", __doc__, *OPTIONS)
    sqlite: list[dict[str, float]] = []
    postgres: list[dict[str, float]] = []
    with postgres_server() as server:
        for number in range(1, options.rounds + 1):
            sqlite.append(report("sqlite", number, dict(sqlite_round(options))))
            postgres.append(report("postgres", number, dict(postgres_round(options, server))))
    found = {"sqlite": medians(sqlite), "postgres": medians(postgres)}
    print_result("rp_store", rounds=options.rounds, writers=options.writers, median=found)


if __name__ == "__main__":
    main()
