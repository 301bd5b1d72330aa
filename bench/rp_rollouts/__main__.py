"""Rolls a revision out to a large pool of a real provider, with simulated nodes; the last line is one JSON.

`idle_percent` is the CPU of the service without a roll-out, `steady_percent` with one that waits for thousands of
nodes. `step_ms` is the time that a report which arrives alone adds to the controller's steps.
`completion` is the time of the roll-out over the time in which the simulated nodes were answering.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc
from bench.figures import print_result
from bench.options import Option, parse
from bench.rp_load.fleet import CLUSTER, VERSION, fill, pool_member
from bench.rp_load.operator_client import OperatorClient
from bench.rp_load.service_process import (
    OPERATOR_LIMITS,
    RunningService,
    running_service,
    sqlite,
    temporary_tenant,
)

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from aks_flex_rp.store.model import Node
    from tests.service.rp.api.tenants import Tenant

OPTIONS = (
    Option("--nodes", 10_000),
    Option("--seconds", 20.0, "for which an idle state is measured"),
)
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


def member(number: int) -> Node:
    conditions = [{**each, "lastTransitionTime": format_utc(VERSION)} for each in CONDITIONS]
    status = {"appliedConfigVersion": str(VERSION), "conditions": conditions}
    return replace(pool_member(number, POOL, FIRST), status=status)


class Client(OperatorClient):
    """The operator, and the nodes that answer."""

    def __init__(self, service: RunningService) -> None:
        super().__init__(service, THREADS)
        self.service = service
        self.answering = 0.0  # seconds in which nodes answered

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
        before, began = self.service.cpu_seconds, time.perf_counter()
        time.sleep(seconds)
        return 100 * (self.service.cpu_seconds - before) / (time.perf_counter() - began)

    def steps(self) -> float:
        """Returns the seconds of all steps so far."""
        return self.metric("aks_flex_rp_rollout_step_seconds_sum")


def measured(options: argparse.Namespace, directory: Path, tenant: Tenant) -> dict[str, Any]:
    def heard(_: int) -> float:  # nodes that are not silent during the run, although they do not poll
        return time.time() + 7200

    state, nodes = directory / "state", range(options.nodes)
    asyncio.run(fill(sqlite(state), nodes, make=member, pools={POOL: FIRST}, heard=heard))
    with running_service(state, tenant, limits=OPERATOR_LIMITS) as service:
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
        while not (state_now := client.shown).get("endedAt"):
            names = client.updating()
            if not names:
                time.sleep(0.1)
                continue
            if state_now["wave"] == 3 and not measured_steady and len(names) > SINGLE_REPORTS:
                measured_steady, paused = True, time.perf_counter()
                found |= _steady(client, options, names)
                pauses = time.perf_counter() - paused
                names = names[SINGLE_REPORTS:]
            client.answer_all(names)
        elapsed = time.perf_counter() - began - pauses
        found |= {"rollout_s": round(elapsed, 1), "completion": round(elapsed / client.answering, 2)}
        found["mib"] = round(service.mebibytes, 1)
        if state_now["state"] != "Succeeded":
            raise SystemExit(f"The roll-out is {state_now['state']}: {state_now.get('reason')}")
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
    options = parse("rp_rollouts", __doc__, *OPTIONS)
    with temporary_tenant() as (directory, tenant):
        found = measured(options, directory, tenant)
    print_result("rp_rollouts", nodes=options.nodes, waves=len(WAVES), **found)


if __name__ == "__main__":
    main()
