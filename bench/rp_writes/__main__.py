"""Alternates PUTs to the service and writes of rows with the driver; the last line is one JSON object.

A PUT is complete except for the config URL: over TLS, authenticated with a key, validated, with its line of the audit
log, and durable before the response. `bare` is a row of this size in its own commit, as in `bench.rp_store`, which
measures only the store. `cpu_ms` is the CPU time of the service for one PUT.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from bench.figures import medians, print_result, print_round
from bench.options import Option, parse
from bench.rp_load.client import LoadTask
from bench.rp_load.fleet import fill, put
from bench.rp_load.service_process import RunningService, measure, running_service, sqlite, temporary_tenant
from bench.rp_store.__main__ import CONNECTIONS, DOCUMENT, SECRET
from bench.rp_store.bare_drivers import postgres_rate, sqlite_rate
from tests.service.rp.store.builders import record_authenticator
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--rounds", 5),
    Option("--seconds", 4.0, "duration of each measurement in a round"),
    Option("--writers", 64, "number of concurrent writers"),
)
NODES = 1000


def puts(service: RunningService, directory: Path, options: argparse.Namespace, label: str) -> dict[str, float]:
    requests = directory / "puts.json"
    requests.write_text(json.dumps([put(number, service.admin, label) for number in range(NODES)]))
    task = LoadTask(service.server, str(requests), "closed", options.writers, options.seconds, pids=service.pids)
    found = measure(task, directory, expect="200")
    return {
        "ours": found["requests"] / found["seconds"],
        "p99_ms": found["milliseconds"]["p99"],
        "cpu_ms": 1000 * found["cpu"] / found["requests"],
    }


def one_round(
    number: int,
    name: str,
    service: RunningService,
    directory: Path,
    options: argparse.Namespace,
    bare: Callable[[], float],
) -> dict[str, float]:
    found = {**puts(service, directory, options, f"round-{number}"), "bare": bare()}
    found["ratio"] = found["ours"] / found["bare"]
    print_round(f"{name} {number}", found)
    return found


def measured(options: argparse.Namespace, directory: Path, tenant: Tenant) -> dict[str, list[dict[str, float]]]:
    text = json.dumps(DOCUMENT)
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        database = server.new_database()
        asyncio.run(fill(sqlite(directory / "sqlite"), range(NODES)))
        asyncio.run(fill(PostgresStore(parse_address(database, {}), record_authenticator()), range(NODES)))
        one = stack.enter_context(running_service(directory / "sqlite", tenant))
        other = stack.enter_context(running_service(directory / "postgres", tenant, database))

        def bare_sqlite() -> float:
            with tempfile.TemporaryDirectory(dir=directory) as name:
                return sqlite_rate(Path(name) / "bare", text, SECRET, 1, options.seconds)

        def bare_postgres() -> float:
            return uvloop.run(postgres_rate(server.new_database(), text, SECRET, CONNECTIONS, options.seconds))

        rounds: dict[str, list[dict[str, float]]] = {"sqlite": [], "postgres": []}
        for number in range(1, options.rounds + 1):
            rounds["sqlite"].append(one_round(number, "sqlite", one, directory, options, bare_sqlite))
            rounds["postgres"].append(one_round(number, "postgres", other, directory, options, bare_postgres))
    return rounds


def main() -> None:
    options = parse("rp_writes", __doc__, *OPTIONS)
    with temporary_tenant() as (directory, tenant):
        rounds = measured(options, directory, tenant)
    figures = {name: medians(some) for name, some in rounds.items()}
    print_result("rp_writes", rounds=options.rounds, writers=options.writers, median=figures)


if __name__ == "__main__":
    main()
