"""Alternates PUTs to the service and writes of rows with the driver; the last line is one JSON object.

A PUT is complete except for the config URL: over TLS, authenticated with a key, validated, with its line of the audit
log, and durable before the response. `bare` is a row of this size in its own commit, as in `bench.rp_store`, which
measures only the store. `cpu_ms` is the CPU time of the service for one PUT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from bench.rp_load.client import LoadTask
from bench.rp_load.fleet import fill, put
from bench.rp_load.service_process import RunningService, measure, running_service, sqlite
from bench.rp_store.__main__ import CONNECTIONS, DOCUMENT, SECRET
from bench.rp_store.bare_drivers import postgres_rate, sqlite_rate
from tests.service.rp.api.tenants import running_tenant
from tests.service.rp.store.builders import record_authenticator
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rp_writes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each measurement in a round")
    parser.add_argument("--writers", type=int, default=64, help="number of concurrent writers")
    return parser.parse_args()


def puts(service: RunningService, directory: Path, options: argparse.Namespace, label: str) -> dict[str, float]:
    requests = directory / "puts.json"
    requests.write_text(json.dumps([put(number, service.admin, label) for number in range(NODES)]))
    pids = (service.process.pid,)
    found = measure(
        LoadTask(service.server, str(requests), "closed", options.writers, options.seconds, pids=pids), directory
    )
    if set(found["statuses"]) != {"200"}:
        raise SystemExit(f"PUTs returned {found['statuses']}.")
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
    print(f"{name} {number}:  " + "  ".join(f"{key} {value:,.2f}" for key, value in found.items()), flush=True)
    return found


def measured(options: argparse.Namespace, directory: Path) -> dict[str, list[dict[str, float]]]:
    authority, text = CertificateAuthority(directory / "pki"), json.dumps(DOCUMENT)
    authority.ensure()
    with ExitStack() as stack:
        tenant = stack.enter_context(running_tenant(authority))
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
    options = arguments()
    with tempfile.TemporaryDirectory() as directory:
        rounds = measured(options, Path(directory))
    medians = {
        name: {key: round(statistics.median(one[key] for one in some), 2) for key in some[0]}
        for name, some in rounds.items()
    }
    print(json.dumps({"bench": "rp_writes", "rounds": options.rounds, "writers": options.writers, "median": medians}))


if __name__ == "__main__":
    main()
