"""Rolls a revision out to a large pool of a real provider, with simulated nodes; the last line is one JSON.

`idle_percent` is the CPU of the service without a roll-out, `steady_percent` with one that waits for thousands of
nodes. `step_ms` is the time that a report which arrives alone adds to the controller's steps.
`completion` is the time of the roll-out over the time in which the simulated nodes were answering.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.nodes.identity_ownership import node_identity
from aks_flex_rp.resource.effective import merge_properties
from aks_flex_rp.resource.models import Properties
from aks_flex_rp.store.model import Cluster, PoolMembership
from aks_flex_rp.store.pool_model import Pool, PoolRevision
from bench.rp_load.fleet import CLUSTER, FACTS, TOGETHER, VERSION, name_of, node
from bench.rp_load.service_process import OPERATOR_LIMITS, RunningService, running_service, sqlite
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node

POOL = "pool0"
FIRST = {"continuousMonitoring": True, "nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}}
SECOND = {"continuousMonitoring": True, "nodeConfig": {"maxPods": 60, "labels": {"site": "north"}}}
CONDITIONS = [
    {"type": "Ready", "status": "True", "reason": "KubeletReady"},
    {"type": "ConfigApplied", "status": "True", "reason": "Applied"},
]
WAVES = ["1%", "10%", "30%", "60%", "100%"]
SINGLE_REPORTS = 40
THREADS = 6


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.rp_rollouts", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="for which an idle state is measured")
    return parser.parse_args()


def member(number: int) -> Node:
    made = node(number)
    own = {"poolName": POOL, "nodeConfig": {"labels": {"rack": str(number % 40)}}}
    effective = merge_properties(FIRST, own)
    identity = node_identity(Properties.model_validate(effective), CLUSTER, FACTS.tenant_id, made.key)
    conditions = [{**each, "lastTransitionTime": format_utc(VERSION)} for each in CONDITIONS]
    status = {"appliedConfigVersion": str(VERSION), "conditions": conditions}
    return replace(made, properties=own, identity=identity, pool=PoolMembership(POOL, 1, effective), status=status)


async def fill(store: Store, nodes: int) -> None:
    await store.start()
    try:
        await store.put_cluster(Cluster(CLUSTER.key, str(CLUSTER), FACTS.to_document(), b""), None)
        pool = Pool(CLUSTER.key, POOL, FIRST, created=1.0)
        await store.put_pool(pool, None, PoolRevision(CLUSTER.key, pool.key, 1, 1.0, FIRST))
        for first in range(0, nodes, TOGETHER):
            numbers = range(first, min(first + TOGETHER, nodes))
            await asyncio.gather(*(store.put_node(member(each), None) for each in numbers))
            # Nodes that are not silent during the run, although they do not poll.
            await store.seen([(CLUSTER.key, name_of(each), time.time() + 7200) for each in numbers])
    finally:
        await store.stop()


@dataclass
class Client:
    service: RunningService
    answering: float = 0.0  # seconds in which nodes answered
    _pool: urllib3.HTTPSConnectionPool = field(init=False)

    def __post_init__(self) -> None:
        server = self.service.server
        self._pool = urllib3.HTTPSConnectionPool(
            server.host, server.port, ca_certs=server.ca, timeout=600, maxsize=THREADS
        )

    def request(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.service.admin}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        answer = self._pool.request(method, f"{path}?api-version={API_VERSION}", body=content, headers=headers)
        if answer.status not in {200, 201}:
            raise SystemExit(f"{method} {path} returned HTTP {answer.status}: {answer.data[:500]!r}")
        return answer.json()

    def rollout(self, method: str, action: str = "", body: Any = None) -> Any:
        return self.request(method, f"{CLUSTER.pool(POOL)}/rollouts/r1{action}", body)

    @property
    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rollout("GET")["properties"]
        return found

    def updating(self) -> list[str]:
        names: list[str] = []
        after = ""
        while True:
            found = self.rollout("POST", "/listNodes", {"state": "Updating", "after": after})
            names += [each["name"] for each in found["value"]]
            after = found.get("after", "")
            if not after:
                return names

    def answer(self, name: str) -> None:
        """Lets a node apply what it was given."""
        version = self.request("GET", CLUSTER.node(name))["properties"]["configVersion"]
        report = {"appliedConfigVersion": version, "conditions": CONDITIONS}
        self.request("POST", f"{CLUSTER.node(name)}/reportStatus", report)

    def answer_all(self, names: list[str]) -> None:
        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self.answer, names))
        self.answering += time.perf_counter() - began

    def cpu_percent(self, seconds: float) -> float:
        before, began = self._cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        return 100 * (self._cpu_seconds() - before) / (time.perf_counter() - began)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.service.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def steps(self) -> float:
        """Returns the seconds of all steps so far."""
        text = self._pool.request("GET", "/metrics").data.decode()
        found = re.search(r"^aks_flex_rp_rollout_step_seconds_sum (\S+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


def measured(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    authority = CertificateAuthority(directory / "pki")
    authority.ensure()
    asyncio.run(fill(sqlite(directory / "state"), options.nodes))
    with (
        running_tenant(authority) as tenant,
        running_service(directory / "state", tenant, limits=OPERATOR_LIMITS) as service,
    ):
        client = Client(service)
        time.sleep(5)
        found = {"idle_percent": round(client.cpu_percent(options.seconds), 2)}
        client.request("PUT", CLUSTER.pool(POOL), {"properties": {"template": SECOND}})
        began = time.perf_counter()
        plan = {"waves": WAVES, "soakSeconds": 0, "stageTimeoutSeconds": 0, "maxUnavailable": "50%"}
        client.rollout("PUT", body={"properties": plan})
        found["create_s"] = round(time.perf_counter() - began, 2)
        measured_steady = False
        pauses = 0.0
        while not (state := client.shown).get("endedAt"):
            names = client.updating()
            if not names:
                time.sleep(0.1)
                continue
            if state["wave"] == 3 and not measured_steady and len(names) > SINGLE_REPORTS:
                measured_steady, paused = True, time.perf_counter()
                found |= _steady(client, options, names)
                pauses = time.perf_counter() - paused
                names = names[SINGLE_REPORTS:]
            client.answer_all(names)
        elapsed = time.perf_counter() - began - pauses
        found |= {"rollout_s": round(elapsed, 1), "completion": round(elapsed / client.answering, 2)}
        found["mib"] = round(service.mebibytes, 1)
        if state["state"] != "Succeeded":
            raise SystemExit(f"The roll-out is {state['state']}: {state.get('reason')}")
    return found


def _steady(client: Client, options: argparse.Namespace, names: list[str]) -> dict[str, float]:
    begun = 0
    while begun != (begun := len(client.updating())):  # the whole wave has begun
        time.sleep(3)
    before = client.steps()
    percent = client.cpu_percent(options.seconds)
    waiting = (client.steps() - before) / options.seconds  # seconds of steps without a report, in a second
    before, began = client.steps(), time.perf_counter()
    for name in names[:SINGLE_REPORTS]:
        client.answer(name)
        time.sleep(0.3)  # each report is a step of its own
    taken = client.steps() - before - waiting * (time.perf_counter() - began)
    return {"steady_percent": round(percent, 2), "step_ms": round(1000 * taken / SINGLE_REPORTS, 2)}


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as directory:
        found = measured(options, Path(directory))
    print(json.dumps({"bench": "rp_rollouts", "nodes": options.nodes, "waves": len(WAVES), **found}))


if __name__ == "__main__":
    main()
