"""Polls a service with an increasing number of nodes, one node after another; the last line is one JSON object.

Every node polls with its own token. `cold` is the first pass after a start: every token is verified, and every node
is read from the store. Then `warm` measures p99 and CPU time of a poll with one poll at a time, and the same number
of polls at each size. With the most nodes, polls are sent at the rate of a hundred thousand nodes with the default
interval (3,333 per second), independent of responses and over enough connections that no poll waits for another.
Their time is measured from when each was due.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.figures import medians, print_result, print_round, rounded
from bench.options import Option, parse
from bench.rp_load.client import LoadTask
from bench.rp_load.fleet import fill, polls
from bench.rp_load.service_process import (
    RunningService,
    fast_signing,
    measure,
    running_service,
    sqlite,
    temporary_tenant,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--rounds", 5),
    Option("--requests", 20_000, "number of polls for each size in a round"),
    Option("--connections", 16),
    Option("--seconds", 20.0, "duration of the polls at a constant rate"),
    Option("--sizes", (100, 1_000, 10_000, 100_000)),
)
RATE = 100_000 / 30


def start(stack: ExitStack, directory: Path, tenant: Tenant, size: int) -> RunningService:
    """Starts a service with a number of nodes in its store, none of which has polled."""
    asyncio.run(fill(sqlite(directory / f"state-{size}"), range(size)))
    (directory / f"polls-{size}.json").write_text(json.dumps(polls(tenant, range(size))))
    return stack.enter_context(running_service(directory / f"state-{size}", tenant))


def response_times(service: RunningService, directory: Path, size: int, **more: Any) -> dict[str, float]:
    task = LoadTask(service.server, str(directory / f"polls-{size}.json"), pids=service.pids, **more)
    found = measure(task, directory, expect="304")
    return {
        "cpu_us": 1e6 * found["cpu"] / found["requests"],
        "p50_ms": found["milliseconds"]["p50"],
        "p99_ms": found["milliseconds"]["p99"],
        "max_ms": found["milliseconds"]["max"],
        "a_second": found["requests"] / found["seconds"],
    }


def shown(what: str, found: dict[str, float]) -> dict[str, float]:
    print_round(what, found)
    return found


def measured(options: argparse.Namespace, directory: Path, tenant: Tenant) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        services = {size: start(stack, directory, fast_signing(tenant), size) for size in options.sizes}
        warm: dict[int, list[dict[str, float]]] = {size: [] for size in options.sizes}
        for size, service in services.items():
            empty = service.mebibytes
            cold = response_times(service, directory, size, connections=options.connections, count=size)
            memory = {"empty_mib": empty, "full_mib": service.mebibytes}
            found[str(size)] = {"cold": shown(f"{size} cold", {**cold, **memory})}
        for number in range(1, options.rounds + 1):
            for size, service in services.items():
                polled = response_times(
                    service, directory, size, connections=options.connections, count=max(options.requests, size)
                )
                warm[size].append(shown(f"{size} warm {number}", polled))
        for size, rounds in warm.items():
            found[str(size)]["warm"] = medians(rounds, 6)
        most = max(options.sizes)
        steady = response_times(
            services[most],
            directory,
            most,
            mode="paced",
            rate=RATE,
            seconds=options.seconds,
            warm=2.0,
            connections=1000,
        )
        found["steady"] = shown("steady", {**steady, "mib": services[most].mebibytes})
    return found


def main() -> None:
    options = parse("rp_scale", __doc__, *OPTIONS)
    with temporary_tenant() as (directory, tenant):
        found = measured(options, directory, tenant)
    least, most = (found[str(pick(options.sizes))]["warm"] for pick in (min, max))
    found["flat"] = {key: most[key] / least[key] for key in ("cpu_us", "p99_ms")}
    print_result("rp_scale", rounds=options.rounds, **rounded(found))


if __name__ == "__main__":
    main()
