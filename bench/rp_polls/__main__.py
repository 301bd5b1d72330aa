"""Alternates polls of the provider and GETs of a small object from the lab's API server; the last line is JSON.

Both use TLS, persistent connections and the same client, with one request at a time on each connection. The CPU time
of the server is measured: the service with its embedded database, and the API server with etcd. Each node polls with
its own token, and nothing has changed. The object is a Lease, which the audit policy excludes, read with an
administrator's certificate. `from_cache` is the same GET from the API server's cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.pki import CertificateAuthority
from bench.lab import running_lab
from bench.rp_load.client import LoadTask
from bench.rp_load.connections import Server
from bench.rp_load.fleet import fill, polls
from bench.rp_load.service_process import RunningService, measure, running_service, sqlite
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab

NAME = "poll"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{NAME}"
DOCUMENT = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": NAME, "namespace": "default"},
    "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 40},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rp_polls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement in a round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument(
        "--lab", default="bench", help="name of the lab; started, and removed at the end, unless it is running"
    )
    return parser.parse_args()


def service_task(service: RunningService, directory: Path, options: argparse.Namespace) -> LoadTask:
    pids = (service.process.pid,)
    return LoadTask(
        service.server, str(directory / "polls.json"), "closed", options.connections, options.seconds, pids=pids
    )


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
    found = rates("ours", measure(service_task(service, directory, options), directory), "304")
    found |= rates("api_server", measure(api_server_task(lab, directory, options), directory, inside), "200")
    from_cache = api_server_task(lab, directory, options, "?resourceVersion=0")
    found |= rates("from_cache", measure(from_cache, directory, inside), "200")
    return {**found, "ratio": found["ours"] / found["api_server"]}


def rates(name: str, found: dict[str, Any], status: str) -> dict[str, float]:
    """Returns the rates of a measurement by name, per CPU second of the server."""
    if set(found["statuses"]) != {status}:
        raise SystemExit(f"{name} returned {found['statuses']}.")
    return {
        name: found["requests"] / found["cpu"],
        f"{name}_a_second": found["requests"] / found["seconds"],
        f"{name}_p99_ms": found["milliseconds"]["p99"],
    }


def measured(lab: Lab, options: argparse.Namespace, directory: Path) -> list[dict[str, float]]:
    lab.cluster.run("apply", "-f", "-", input=json.dumps(DOCUMENT))
    authority, rounds = CertificateAuthority(directory / "pki"), []
    authority.ensure()
    asyncio.run(fill(sqlite(directory / "state"), range(options.nodes)))
    with running_tenant(authority) as tenant, running_service(directory / "state", tenant) as service:
        (directory / "polls.json").write_text(json.dumps(polls(tenant, range(options.nodes))))
        warm = LoadTask(service.server, str(directory / "polls.json"), count=options.nodes)
        for _ in range(2):  # the first poll records to which node the identity belongs, the second reads that
            measure(warm, directory)
        for number in range(1, options.rounds + 1):
            rounds.append(one_round(lab, service, directory, options))
            shown = "  ".join(f"{key} {value:,.2f}" for key, value in rounds[-1].items())
            print(f"round {number}:  {shown}", flush=True)
    return rounds


def main() -> None:
    options = arguments()
    with running_lab(options.lab) as lab, tempfile.TemporaryDirectory() as directory:
        rounds = measured(lab, options, Path(directory))
    medians = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
    ratios = [round(one["ratio"], 2) for one in rounds]
    print(json.dumps({"bench": "rp_polls", "rounds": len(rounds), "median": medians, "ratios": ratios}))


if __name__ == "__main__":
    main()
