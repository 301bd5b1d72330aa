"""Polls a service with an increasing number of nodes, one node after another; the last line is one JSON object.

Every node polls with its own token. `cold` is the first pass after a start: every token is verified, and every node
is read from the store. Then `warm` measures p99 and CPU time of a poll with one poll at a time, and the same number
of polls at each size. With the most nodes, polls are sent at the rate of a hundred thousand nodes with the default
interval (3,333 per second), independent of responses and over enough connections that no poll waits for another.
Their time is measured from when each was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.pki import CertificateAuthority
from bench.rp_load.client import LoadTask
from bench.rp_load.fleet import fill, polls
from bench.rp_load.service_process import RunningService, fast_signing, measure, running_service, sqlite
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from tests.service.rp.api.tenants import Tenant

SIZES = (100, 1_000, 10_000, 100_000)
RATE = 100_000 / 30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rp_scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000, help="number of polls for each size in a round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the polls at a constant rate")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    return parser.parse_args()


def start(stack: ExitStack, directory: Path, tenant: Tenant, size: int) -> RunningService:
    """Starts a service with a number of nodes in its store, none of which has polled."""
    asyncio.run(fill(sqlite(directory / f"state-{size}"), range(size)))
    (directory / f"polls-{size}.json").write_text(json.dumps(polls(tenant, range(size))))
    return stack.enter_context(running_service(directory / f"state-{size}", tenant))


def response_times(service: RunningService, directory: Path, size: int, **more: Any) -> dict[str, float]:
    task = LoadTask(service.server, str(directory / f"polls-{size}.json"), pids=(service.process.pid,), **more)
    found = measure(task, directory)
    if set(found["statuses"]) != {"304"}:
        raise SystemExit(f"With {size} nodes, polls returned {found['statuses']}.")
    return {
        "cpu_us": 1e6 * found["cpu"] / found["requests"],
        "p50_ms": found["milliseconds"]["p50"],
        "p99_ms": found["milliseconds"]["p99"],
        "max_ms": found["milliseconds"]["max"],
        "a_second": found["requests"] / found["seconds"],
    }


def shown(what: str, found: dict[str, float]) -> dict[str, float]:
    print(f"{what}:  " + "  ".join(f"{key} {value:,.2f}" for key, value in found.items()), flush=True)
    return found


def measured(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    authority = CertificateAuthority(directory / "pki")
    authority.ensure()
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        tenant = fast_signing(stack.enter_context(running_tenant(authority)))
        services = {size: start(stack, directory, tenant, size) for size in options.sizes}
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
            found[str(size)]["warm"] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
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
    options = arguments()
    with tempfile.TemporaryDirectory() as directory:
        found = measured(options, Path(directory))
    least, most = (found[str(pick(options.sizes))]["warm"] for pick in (min, max))
    found["flat"] = {key: most[key] / least[key] for key in ("cpu_us", "p99_ms")}
    print(json.dumps({"bench": "rp_scale", "rounds": options.rounds, **rounded(found)}))


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return round(found, 2)


if __name__ == "__main__":
    main()
