"""Enrolment in the lab: several machines join with one URL, and one waits for its approval."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from aks_flex_node.timestamps import format_utc
from tests.agents import differences, flex
from tests.providers import VERSION, Provider
from tests.wait import until, until_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

POOL = "enrolled"


@dataclass(frozen=True)
class Enrolments:
    provider: Provider

    def ask(self, method: str, *below: str, body: Any = None) -> Any:
        path = "/".join((f"{self.provider.cluster}/flexNodePools/{POOL}", *below))
        answer = self.provider.ask(method, f"{path}?{VERSION}", body)
        assert answer.status in {200, 201, 204}, answer
        return answer.document

    def create(self, **body: Any) -> tuple[str, str]:
        """Returns the ID and the URL of a new enrolment."""
        made = self.ask("POST", "enrolments", body={"expires": format_utc(time.time() + 3600), **body})
        return made["name"], made["properties"]["enrolmentUrl"]

    def machines(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("POST", "enrolments", name, "listMachines")["value"]
        return found

    def has_key(self, node: str) -> bool:
        return "nodeKey" in self.provider.get(node)["status"]


@pytest.fixture
def enrolments(lab: Lab) -> Iterator[Enrolments]:
    made = Enrolments(Provider(lab))
    made.ask("PUT", body={"properties": {"template": {"continuousMonitoring": True}}})
    yield made
    for each in made.ask("GET", "enrolments")["value"]:
        for machine in made.machines(each["name"]):
            if node := machine.get("nodeName"):
                made.provider.delete(node)
    made.ask("DELETE")


def prepared(add: Add, name: str) -> EdgeMachine:
    machine = add(name)
    until_named(machine, "provider.flex.internal")
    node_agent.install(machine)
    return machine


def is_ready(lab: Lab, node: str) -> bool:
    conditions = lab.cluster.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_two_machines_join_with_one_url(lab: Lab, add_machine: Add, enrolments: Enrolments) -> None:
    machines = [prepared(add_machine, name) for name in ("enrol-1", "enrol-2")]
    before = [machine.snapshot() for machine in machines]
    name, url = enrolments.create(maxUses=2, nodeName="edge-{number:04}")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda machine: flex(machine, "agent", "--config-url", url), machines))
    nodes = {each["nodeName"] for each in enrolments.machines(name)}
    assert nodes == {"edge-0001", "edge-0002"}
    for node in nodes:
        assert is_ready(lab, node)
        until(partial(enrolments.has_key, node), f"{node} reports by its key")
    flex(machines[0], "agent", "--config-url", url)  # again: takes no use, and changes nothing
    assert len(enrolments.machines(name)) == 2
    for machine, first in zip(machines, before, strict=True):
        flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
        assert differences(first, machine) == []


def test_machine_waits_for_its_approval(lab: Lab, add_machine: Add, enrolments: Enrolments) -> None:
    machine = prepared(add_machine, "enrol-3")
    name, url = enrolments.create(maxUses=1, approval="manual")
    refused = flex(machine, "agent", "--config-url", url, "--set", "agent.approvalSeconds=2", check=False)
    assert "enrolment-not-approved" in refused.err
    [waiting] = enrolments.machines(name)
    shown = json.loads(flex(machine, "node-key", "show", "--json").out)
    assert waiting["fingerprint"] == shown["fingerprint"]
    assert waiting["fingerprint"] in refused.err
    with ThreadPoolExecutor(1) as threads:
        joining = threads.submit(flex, machine, "agent", "--config-url", url)
        enrolments.ask("POST", "enrolments", name, "approve", body={"fingerprint": waiting["fingerprint"]})
        joining.result()
    assert is_ready(lab, "enrol-3")
