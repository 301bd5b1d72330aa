"""Alternates polls with tokens of Entra ID and polls with assertions of node keys; the last line is JSON.

The CPU time of the service is measured, which has verified every credential before: `ratio` compares both. A fresh
assertion, which is verified for the first time, is measured by itself, in microseconds of CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.api.node_keys import AUDIENCE_PREFIX
from aks_flex_rp.auth.node_assertions import KnownNode, SignedAssertion, verify_assertion
from aks_flex_rp.clusters.holder import HOLDER_FACT
from aks_flex_rp.node_keys import NodeKeys
from aks_flex_rp.store.model import Cluster
from bench.rp_load.client import LoadTask
from bench.rp_load.fleet import CLUSTER, FACTS, fill, name_of, node, poll, polls
from bench.rp_load.service_process import measure, running_service, sqlite
from tests.node_key_client import HeldKey
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from bench.rp_load.service_process import RunningService

HOLDER = "0" * 32
AUDIENCE = f"{AUDIENCE_PREFIX}{HOLDER}"
SAMPLES = 2000  # fresh assertions


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.node_keys", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement in a round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=1000)
    return parser.parse_args()


async def bind(state: Path, keys: list[HeldKey]) -> None:
    """Writes the cluster with an ID of the service, and nodes with keys."""
    store = sqlite(state)
    await store.start()
    try:
        facts = {**FACTS.to_document(), HOLDER_FACT: HOLDER}
        await store.put_cluster(Cluster(CLUSTER.key, str(CLUSTER), facts, b""), None)
    finally:
        await store.stop()
    await fill(sqlite(state), range(len(keys)))
    store = sqlite(state)
    await store.start()
    try:
        for number, key in enumerate(keys):
            known = await store.node(CLUSTER.key, node(number).key)
            if known:
                bound = known.join.with_keys(NodeKeys(key.thumbprint, time.time()))
                await store.put_node(replace(known, join=bound), known.etag)
    finally:
        await store.stop()


def assertions(keys: list[HeldKey]) -> list[str]:
    return [key.assertion(CLUSTER.node(name_of(number)), AUDIENCE) for number, key in enumerate(keys)]


def rate(service: RunningService, file: Path, options: argparse.Namespace, directory: Path) -> float:
    """Returns the polls per second of CPU time."""
    closed, pids = options.connections, (service.process.pid,)
    found: dict[str, Any] = measure(
        LoadTask(service.server, str(file), "closed", closed, options.seconds, pids=pids), directory
    )
    if set(found["statuses"]) != {"304"}:
        raise SystemExit(f"{file.name} returned {found['statuses']}.")
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
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        authority = CertificateAuthority(directory / "pki")
        authority.ensure()
        keys = [HeldKey() for _ in range(options.nodes)]
        asyncio.run(bind(directory / "state", keys))
        rounds = []
        with running_tenant(authority) as tenant, running_service(directory / "state", tenant) as service:
            files = {"token": directory / "tokens.json", "key": directory / "keys.json"}
            files["token"].write_text(json.dumps(polls(tenant, range(options.nodes))))
            for number in range(1, options.rounds + 1):
                signed = [poll(each, text) for each, text in enumerate(assertions(keys))]
                files["key"].write_text(json.dumps(signed))
                for file in files.values():
                    measure(LoadTask(service.server, str(file), count=options.nodes), directory)
                found = {kind: rate(service, file, options, directory) for kind, file in files.items()}
                rounds.append({**found, "ratio": found["key"] / found["token"]})
                shown = "  ".join(f"{kind} {value:,.2f}" for kind, value in rounds[-1].items())
                print(f"round {number}:  {shown}", flush=True)
    fresh = fresh_microseconds()
    medians = {kind: round(statistics.median(one[kind] for one in rounds), 3) for kind in rounds[0]}
    microseconds = {
        "median": round(statistics.median(fresh), 1),
        "p99": round(sorted(fresh)[int(len(fresh) * 0.99)], 1),
    }
    print(json.dumps({"bench": "node_keys", "rounds": len(rounds), "median": medians, "fresh_us": microseconds}))


if __name__ == "__main__":
    main()
