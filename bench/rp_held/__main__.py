"""Opens many long polls and changes their nodes; the last line is one JSON object.

Every poll has its own connection, uses `Prefer: wait=55`, and is repeated after each response. A change is a PUT over
HTTP. The time is measured from the request and from the response of a PUT to the response of the node's poll:
`single` with one PUT after another, `burst` with changes of all nodes as fast as possible. Runs once with SQLite, and
once with two replicas on PostgreSQL, of which one receives the PUTs and the other the polls.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from aks_flex_rp.store.postgres import PostgresStore
from aks_flex_rp.store.postgres_address import parse_address
from bench.figures import print_result, rounded
from bench.options import Option, parse
from bench.rp_load.client import LoadTask
from bench.rp_load.connections import spread
from bench.rp_load.fleet import fill, poll, put, token
from bench.rp_load.operator_client import OperatorClient
from bench.rp_load.service_process import (
    RunningService,
    fast_signing,
    measure,
    running_service,
    sqlite,
    start_client,
    temporary_tenant,
)
from tests.service.rp.store.builders import record_authenticator
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_lab.processes import ProcessHandle
    from tests.service.rp.api.tenants import Tenant

WAIT = 55
WRITERS = 16


class LongPolls:
    """Open long polls of a service, and their results."""

    def __init__(self, service: RunningService, directory: Path, tenant: Tenant, count: int) -> None:
        self._directory = directory
        requests = directory / "held.json"
        requests.write_text(json.dumps([poll(number, token(tenant, number), WAIT) for number in range(count)]))
        task = LoadTask(service.server, str(requests), "held", connections=count, warm=0, times=True)
        before = service.mebibytes
        self._client, self._result = start_client(task, directory)
        operator = OperatorClient(service)
        self._wait(lambda: operator.metric("aks_flex_rp_held_polls") >= count, self._client)
        self.kibibytes = (service.mebibytes - before) * 1024 / count

    def end(self) -> list[tuple[int, float, float, int]]:
        time.sleep(8.0)  # the last ones may still be connecting
        self._client.kill()
        self._wait(self._result.exists, self._client)
        found: list[tuple[int, float, float, int]] = json.loads(self._result.read_text())["times"]
        return found

    def _wait(self, ready: Any, client: ProcessHandle) -> None:
        end = time.monotonic() + 120
        while not ready():
            if time.monotonic() > end or not (client.alive or self._result.exists()):
                raise SystemExit(f"The client of long polls failed: {(self._directory / 'client.log').read_text()}")
            time.sleep(0.2)


def change(service: RunningService, directory: Path, numbers: range, label: str, writers: int) -> dict[str, Any]:
    requests = directory / f"put-{label}.json"
    requests.write_text(json.dumps([put(number, service.admin, label) for number in numbers]))
    task = LoadTask(service.server, str(requests), connections=writers, count=len(numbers), times=True)
    return measure(task, directory, expect="200")


def delays(changes: dict[str, Any], heard: list[tuple[int, float, float, int]]) -> dict[str, float]:
    """Returns the time from each change to the first later response of the node's poll."""
    answers: dict[int, list[float]] = {}
    for number, _, answered, status in heard:
        if status == 200:
            answers.setdefault(number, []).append(answered)
    since_sent, since_answer = [], []
    for number, sent, answered, _ in changes["times"]:
        answer_time = next((moment for moment in answers.get(number, ()) if moment > sent), None)
        if answer_time is None:
            raise SystemExit(f"The poll of node {number} did not receive its change.")
        since_sent.append(1000 * (answer_time - sent))
        since_answer.append(1000 * (answer_time - answered))
    found = {f"sent_{name}_ms": value for name, value in spread(since_sent).items()}
    found |= {f"answer_{name}_ms": value for name, value in spread(since_answer).items()}
    return {**found, "puts_a_second": changes["requests"] / changes["seconds"]}


def measured(
    options: argparse.Namespace, written: RunningService, held_at: RunningService, directory: Path, tenant: Tenant
) -> Any:
    held = LongPolls(held_at, directory, tenant, options.polls)
    single = change(written, directory, range(options.singles), "second", 1)
    burst = change(written, directory, range(options.polls), "third", WRITERS)
    heard = held.end()
    return {
        "kib_a_poll": held.kibibytes,
        "single": delays(single, heard),
        "burst": delays(burst, heard),
    }


def on_sqlite(options: argparse.Namespace, directory: Path, tenant: Tenant) -> Any:
    asyncio.run(fill(sqlite(directory / "state"), range(options.polls)))
    with running_service(directory / "state", tenant) as service:
        return measured(options, service, service, directory, tenant)


def on_postgres(options: argparse.Namespace, directory: Path, tenant: Tenant) -> Any:
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server()).new_database()
        asyncio.run(fill(PostgresStore(parse_address(database, {}), record_authenticator()), range(options.polls)))
        one, other = (
            stack.enter_context(running_service(directory / name, tenant, database)) for name in ("one", "other")
        )
        return measured(options, one, other, directory, tenant)


def main() -> None:
    options = parse("rp_held", __doc__, Option("--polls", 5000), Option("--singles", 300))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = {}
    with temporary_tenant() as (directory, tenant):
        for kind, measure_it in {"sqlite": on_sqlite, "postgres": on_postgres}.items():
            (directory / kind).mkdir()
            found[kind] = rounded(measure_it(options, directory / kind, fast_signing(tenant)))
            print(f"{kind}:  {found[kind]}", flush=True)
    print_result("rp_held", polls=options.polls, **found)


if __name__ == "__main__":
    main()
