"""Applies a changed template to all nodes of a pool, and reads lists of nodes in pools; the last line is one JSON.

`apply_s` is the time from the request to its response, after which every node's effective configuration is readable;
each node is then read once. `added_mib` is the growth of the service's memory during it. `list` and `pool list` are
pages of 100 nodes over TLS, of all nodes and of one pool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.api.contract import API_VERSION
from aks_flex_rp.nodes.identity_ownership import node_identity
from aks_flex_rp.resource.effective import merge_properties
from aks_flex_rp.resource.models import Properties
from aks_flex_rp.store.model import Cluster, PoolMembership
from aks_flex_rp.store.pool_model import Pool, PoolRevision
from bench.rp_load.connections import percentile
from bench.rp_load.fleet import CLUSTER, FACTS, TOGETHER, name_of, node
from bench.rp_load.service_process import OPERATOR_LIMITS, RunningService, running_service, sqlite
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node

COMMON = {"continuousMonitoring": True, "azureAuth": {"method": "arc"}}
FIRST = {**COMMON, "nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}
TAINT = {"key": "a", "effect": "NoSchedule"}
SECOND = {**COMMON, "nodeConfig": {"maxPods": 60, "labels": {"site": "north"}, "taints": [TAINT]}}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rp_pools", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of the pool that is changed")
    parser.add_argument("--others", type=int, default=90_000, help="nodes of the other pools")
    parser.add_argument("--pools", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=40, help="number of requests for each list")
    return parser.parse_args()


def member(number: int, pool: str) -> Node:
    made = node(number)
    own = {"poolName": pool, "nodeConfig": {"labels": {"rack": str(number % 40)}}}
    effective = merge_properties(FIRST, own)
    identity = node_identity(Properties.model_validate(effective), CLUSTER, FACTS.tenant_id, made.key)
    return replace(made, properties=own, identity=identity, pool=PoolMembership(pool, 1, effective))


async def fill(store: Store, options: argparse.Namespace) -> None:
    await store.start()
    try:
        await store.put_cluster(Cluster(CLUSTER.key, str(CLUSTER), FACTS.to_document(), b""), None)
        for number in range(options.pools):
            pool = Pool(CLUSTER.key, f"pool{number}", FIRST, created=1.0)
            await store.put_pool(pool, None, PoolRevision(CLUSTER.key, pool.key, 1, 1.0, FIRST))
        for first in range(0, options.nodes + options.others, TOGETHER):
            numbers = range(first, min(first + TOGETHER, options.nodes + options.others))
            await asyncio.gather(*(store.put_node(member(each, _pool(each, options)), None) for each in numbers))
    finally:
        await store.stop()


def _pool(number: int, options: argparse.Namespace) -> str:
    return "pool0" if number < options.nodes else f"pool{1 + number % (options.pools - 1)}"


class Client:
    def __init__(self, service: RunningService) -> None:
        server = service.server
        self._pool = urllib3.HTTPSConnectionPool(server.host, server.port, ca_certs=server.ca, timeout=600)
        self._headers = {"Authorization": f"Bearer {service.admin}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: Any = None, query: str = "") -> dict[str, Any]:
        content = None if body is None else json.dumps(body)
        answer = self._pool.request(
            method, f"{path}?api-version={API_VERSION}{query}", body=content, headers=self._headers
        )
        if answer.status not in {200, 201}:
            raise SystemExit(f"{method} {path} returned HTTP {answer.status}: {answer.data[:500]!r}")
        found: dict[str, Any] = answer.json()
        return found

    def milliseconds(self, query: str) -> float:
        began = time.perf_counter()
        self.request("GET", f"{CLUSTER}/flexNodeConfig", query=query)
        return 1000 * (time.perf_counter() - began)


def measured(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    authority = CertificateAuthority(directory / "pki")
    authority.ensure()
    asyncio.run(fill(sqlite(directory / "state"), options))
    with (
        running_tenant(authority) as tenant,
        running_service(directory / "state", tenant, limits=OPERATOR_LIMITS) as service,
    ):
        client, views = (
            Client(service),
            {"list": "&$top=100", "pool list": "&$filter=poolName%20eq%20'pool7'&$top=100"},
        )
        found: dict[str, Any] = {}
        for name, query in views.items():
            taken = sorted(client.milliseconds(query) for _ in range(options.rounds))
            found[name] = {f"p{percent}_ms": round(percentile(taken, percent), 2) for percent in (50, 95)}
        client.request("PUT", CLUSTER.pool("pool0"), {"properties": {"template": SECOND}})
        before, cpu, began = service.mebibytes, _cpu_seconds(service), time.perf_counter()
        result = client.request("POST", f"{CLUSTER.pool('pool0')}/apply", {})
        found["apply_s"] = round(time.perf_counter() - began, 2)
        found["apply_cpu_s"] = round(_cpu_seconds(service) - cpu, 2)
        found["added_mib"] = round(service.mebibytes - before, 1)
        found["applied"], found["refused"] = len(result["applied"]), len(result["refused"])
        for number in range(0, options.nodes, 97):
            shown = client.request("GET", CLUSTER.node(name_of(number)))["properties"]
            if shown["config"]["node"]["maxPods"] != 60:
                raise SystemExit(f"{name_of(number)} has another configuration.")
    return found


def _cpu_seconds(service: RunningService) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as directory:
        found = measured(options, Path(directory))
    print(json.dumps({"bench": "rp_pools", "nodes": options.nodes, "pools": options.pools, **found}))


if __name__ == "__main__":
    main()
