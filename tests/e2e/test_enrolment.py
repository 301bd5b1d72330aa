"""Enrolment in the lab: several machines join with one URL, and one waits for its approval."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, flex, install_agent
from tests.enrolled_node import Enrolments
from tests.providers import Provider
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]


@pytest.fixture
def enrolments(lab: Lab) -> Iterator[Enrolments]:
    made = Enrolments(Provider(lab))
    made.put_pool()
    yield made
    made.delete()


def prepared(add: Add, name: str) -> EdgeMachine:
    machine = add(name)
    install_agent(machine)
    return machine


@pytest.mark.promise
def test_two_machines_join_with_one_url(lab: Lab, add_machine: Add, enrolments: Enrolments) -> None:
    machines = [prepared(add_machine, name) for name in ("enrol-1", "enrol-2")]
    before = [machine.snapshot() for machine in machines]
    name, url = enrolments.create(maxUses=2, nodeName="edge-{number:04}")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda machine: flex(machine, "agent", "--config-url", url), machines))
    nodes = {each["nodeName"] for each in enrolments.machines(name)}
    assert nodes == {"edge-0001", "edge-0002"}
    for node in nodes:
        assert lab.cluster.node_ready(node)
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
    assert lab.cluster.node_ready("enrol-3")
