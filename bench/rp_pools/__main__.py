from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from bench.figures import print_result
from bench.options import Option, parse
from bench.rp_load.connections import percentile
from bench.rp_load.fleet import CLUSTER, fill, name_of, pool_member
from bench.rp_load.operator_client import OperatorClient
from bench.rp_load.service_process import OPERATOR_LIMITS, running_service, sqlite, temporary_tenant

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_rp.store.model import Node
    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--nodes", 10_000, "nodes of the pool that is changed"),
    Option("--others", 90_000, "nodes of the other pools"),
    Option("--pools", 50),
    Option("--rounds", 40, "number of requests for each list"),
)
COMMON = {"continuousMonitoring": True, "azureAuth": {"method": "arc"}}
FIRST = {**COMMON, "nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}
TAINT = {"key": "a", "effect": "NoSchedule"}
SECOND = {**COMMON, "nodeConfig": {"maxPods": 60, "labels": {"site": "north"}, "taints": [TAINT]}}
VIEWS = {"list": "&$top=100", "pool list": "&$filter=poolName%20eq%20'pool7'&$top=100"}


def milliseconds(client: OperatorClient, query: str) -> float:
    began = time.perf_counter()
    client.request("GET", f"{CLUSTER}/flexNodeConfig", query=query)
    return 1000 * (time.perf_counter() - began)


def measured(options: argparse.Namespace, directory: Path, tenant: Tenant) -> dict[str, Any]:
    def member(number: int) -> Node:
        pool = 0 if number < options.nodes else 1 + number % (options.pools - 1)
        return pool_member(number, f"pool{pool}", FIRST)

    pools = {f"pool{number}": FIRST for number in range(options.pools)}
    numbers = range(options.nodes + options.others)
    asyncio.run(fill(sqlite(directory / "state"), numbers, make=member, pools=pools))
    with running_service(directory / "state", tenant, limits=OPERATOR_LIMITS) as service:
        client, found = OperatorClient(service), dict[str, Any]()
        for name, query in VIEWS.items():
            taken = sorted(milliseconds(client, query) for _ in range(options.rounds))
            found[name] = {f"p{percent}_ms": round(percentile(taken, percent), 2) for percent in (50, 95)}
        client.request("PUT", CLUSTER.pool("pool0"), {"properties": {"template": SECOND}})
        before, cpu, began = service.mebibytes, service.cpu_seconds, time.perf_counter()
        result = client.request("POST", f"{CLUSTER.pool('pool0')}/apply", {})
        found["apply_s"] = round(time.perf_counter() - began, 2)
        found["apply_cpu_s"] = round(service.cpu_seconds - cpu, 2)
        found["added_mib"] = round(service.mebibytes - before, 1)
        found["applied"], found["refused"] = len(result["applied"]), len(result["refused"])
        for number in range(0, options.nodes, 97):
            shown = client.request("GET", CLUSTER.node(name_of(number)))["properties"]
            if shown["config"]["node"]["maxPods"] != 60:
                raise SystemExit(f"{name_of(number)} has another configuration.")
    return found


def main() -> None:
    options = parse("rp_pools", __doc__, *OPTIONS)
    with temporary_tenant() as (directory, tenant):
        found = measured(options, directory, tenant)
    print_result("rp_pools", nodes=options.nodes, pools=options.pools, **found)


if __name__ == "__main__":
    main()
