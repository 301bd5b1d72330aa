"""Alternates polls with tokens of Entra ID and polls with assertions of node keys; the last line is JSON.

The CPU time of the service is measured, which has verified every credential before: `ratio` compares both. A fresh
assertion, which is verified for the first time, is measured by itself, in microseconds of CPU time.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.api.node_keys import AUDIENCE_PREFIX
from aks_flex_rp.auth.node_assertions import KnownNode, SignedAssertion, verify_assertion
from aks_flex_rp.clusters.holder import HOLDER_FACT
from aks_flex_rp.node_keys import NodeKeys
from aks_flex_rp.store.model import Cluster
from bench.figures import medians, print_result, print_round
from bench.options import Option, parse
from bench.rp_load.client import LoadTask
from bench.rp_load.connections import percentile
from bench.rp_load.fleet import CLUSTER, FACTS, fill, name_of, node, poll, polls
from bench.rp_load.service_process import measure, running_service, sqlite, temporary_tenant
from tests.node_key_client import HeldKey

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_rp.store.model import Node
    from bench.rp_load.service_process import RunningService

OPTIONS = (
    Option("--rounds", 5),
    Option("--seconds", 5.0, "duration of each measurement in a round"),
    Option("--connections", 64),
    Option("--nodes", 1000),
)
HOLDER = "0" * 32
AUDIENCE = f"{AUDIENCE_PREFIX}{HOLDER}"
SAMPLES = 2000  # fresh assertions


async def bind(state: Path, keys: list[HeldKey]) -> None:
    """Writes the cluster with an ID of the service, and nodes with keys."""

    def bound(number: int) -> Node:
        made = node(number)
        return replace(made, join=made.join.with_keys(NodeKeys(keys[number].thumbprint, time.time())))

    store = sqlite(state)
    await store.start()
    try:
        facts = {**FACTS.to_document(), HOLDER_FACT: HOLDER}
        await store.put_cluster(Cluster(CLUSTER.key, str(CLUSTER), facts, b""), None)
    finally:
        await store.stop()
    await fill(sqlite(state), range(len(keys)), make=bound)


def assertions(keys: list[HeldKey]) -> list[str]:
    return [key.assertion(CLUSTER.node(name_of(number)), AUDIENCE) for number, key in enumerate(keys)]


def rate(service: RunningService, file: Path, options: argparse.Namespace, directory: Path) -> float:
    """Returns the polls per second of CPU time."""
    task = LoadTask(service.server, str(file), "closed", options.connections, options.seconds, pids=service.pids)
    found = measure(task, directory, expect="304")
    return float(found["requests"] / found["cpu"])


def fresh_microseconds() -> list[float]:
    """Returns the CPU time of each first verification, which the cache of the service answers afterwards."""
    key = HeldKey()
    known = KnownNode(AUDIENCE, NodeKeys(key.thumbprint))

    async def find(_: SignedAssertion) -> KnownNode:
        return known

    resource, now = CLUSTER.node(name_of(0)), time.time()
    made = [key.assertion(resource, AUDIENCE, begin=now - number % 200) for number in range(SAMPLES)]

    async def verify() -> list[float]:
        found = []
        for each in made:
            begun = time.process_time()
            await verify_assertion(each, find)
            found.append((time.process_time() - begun) * 1e6)
        return found

    return asyncio.run(verify())


def main() -> None:
    options = parse("node_keys", __doc__, *OPTIONS)
    rounds: list[dict[str, float]] = []
    with temporary_tenant() as (directory, tenant):
        keys = [HeldKey() for _ in range(options.nodes)]
        asyncio.run(bind(directory / "state", keys))
        with running_service(directory / "state", tenant) as service:
            files = {"token": directory / "tokens.json", "key": directory / "keys.json"}
            files["token"].write_text(json.dumps(polls(tenant, range(options.nodes))))
            for number in range(1, options.rounds + 1):
                signed = [poll(each, text) for each, text in enumerate(assertions(keys))]
                files["key"].write_text(json.dumps(signed))
                for file in files.values():
                    measure(LoadTask(service.server, str(file), count=options.nodes), directory)
                found = {kind: rate(service, file, options, directory) for kind, file in files.items()}
                rounds.append({**found, "ratio": found["key"] / found["token"]})
                print_round(f"round {number}", rounds[-1])
    fresh = sorted(fresh_microseconds())
    microseconds = {"median": round(percentile(fresh, 50), 1), "p99": round(percentile(fresh, 99), 1)}
    print_result("node_keys", rounds=len(rounds), median=medians(rounds, 3), fresh_us=microseconds)


if __name__ == "__main__":
    main()
