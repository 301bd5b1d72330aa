"""Alternates polls of the provider and GETs of a small object from the lab's API server; the last line is JSON.

Both use TLS, persistent connections and the same client, with one request at a time on each connection. The CPU time
of the server is measured: the service with its embedded database, and the API server with etcd. Each node polls with
its own token, and nothing has changed. The object is a Lease, which the audit policy excludes, read with an
administrator's certificate. `from_cache` is the same GET from the API server's cache.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from bench.figures import medians, print_result, print_round
from bench.lab import running_lab
from bench.options import LAB, Option, parse
from bench.rp_load.client import LoadTask
from bench.rp_load.connections import Server
from bench.rp_load.fleet import fill, polls
from bench.rp_load.service_process import RunningService, measure, running_service, sqlite, temporary_tenant

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--rounds", 5),
    Option("--seconds", 5.0, "duration of each measurement in a round"),
    Option("--connections", 64),
    Option("--nodes", 2000),
    LAB,
)
NAME = "poll"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{NAME}"
DOCUMENT = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": NAME, "namespace": "default"},
    "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 40},
}


def service_task(service: RunningService, directory: Path, options: argparse.Namespace) -> LoadTask:
    polls_file = str(directory / "polls.json")
    return LoadTask(service.server, polls_file, "closed", options.connections, options.seconds, pids=service.pids)


def api_server_task(lab: Lab, directory: Path, options: argparse.Namespace, query: str = "") -> LoadTask:
    admin, requests = lab.control_plane.admin(), directory / f"gets{len(query)}.json"
    lines = (f"GET {LEASE}{query} HTTP/1.1", f"Host: {network.API_NAME}", "Accept: application/json", "", "")
    requests.write_text(json.dumps(["\r\n".join(lines)]))
    server = Server(
        network.API, 443, str(lab.authority.certificate), network.API_NAME, str(admin.certificate), str(admin.key)
    )
    running = [lab.supervisor.process(name) for name in ("kube-apiserver", "etcd")]
    pids = tuple(process.pid for process in running if process)
    return LoadTask(server, str(requests), "closed", options.connections, options.seconds, pids=pids)


def one_round(lab: Lab, service: RunningService, directory: Path, options: argparse.Namespace) -> dict[str, float]:
    inside = lab.network.cloud.command()
    found = rates("ours", measure(service_task(service, directory, options), directory, expect="304"))
    for name, query in {"api_server": "", "from_cache": "?resourceVersion=0"}.items():
        task = api_server_task(lab, directory, options, query)
        found |= rates(name, measure(task, directory, inside, expect="200"))
    return {**found, "ratio": found["ours"] / found["api_server"]}


def rates(name: str, found: dict[str, Any]) -> dict[str, float]:
    """Returns the rates of a measurement by name, per CPU second of the server."""
    return {
        name: found["requests"] / found["cpu"],
        f"{name}_a_second": found["requests"] / found["seconds"],
        f"{name}_p99_ms": found["milliseconds"]["p99"],
    }


def measured(lab: Lab, options: argparse.Namespace, directory: Path, tenant: Tenant) -> list[dict[str, float]]:
    lab.cluster.run("apply", "-f", "-", input=json.dumps(DOCUMENT))
    rounds = []
    asyncio.run(fill(sqlite(directory / "state"), range(options.nodes)))
    with running_service(directory / "state", tenant) as service:
        (directory / "polls.json").write_text(json.dumps(polls(tenant, range(options.nodes))))
        warm = LoadTask(service.server, str(directory / "polls.json"), count=options.nodes)
        for _ in range(2):  # the first poll records to which node the identity belongs, the second reads that
            measure(warm, directory)
        for number in range(1, options.rounds + 1):
            rounds.append(one_round(lab, service, directory, options))
            print_round(f"round {number}", rounds[-1])
    return rounds


def main() -> None:
    options = parse("rp_polls", __doc__, *OPTIONS)
    with running_lab(options.lab) as lab, temporary_tenant() as (directory, tenant):
        rounds = measured(lab, options, directory, tenant)
    ratios = [round(one["ratio"], 2) for one in rounds]
    print_result("rp_polls", rounds=len(rounds), median=medians(rounds), ratios=ratios)


if __name__ == "__main__":
    main()
