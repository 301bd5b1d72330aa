"""The provider as two replicas in a cluster: nodes that poll do not notice restarts and drains."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from rp_image.debian_packages import host_archive
from rp_image.image import ImageInputs, build_image, image_cache

from aks_flex_lab.tools.recipes import machine_arch
from tests.agents import flex, prepare
from tests.provider_deployment import deployed_provider, open_connections, polling_fleet, service_clients
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.images.builder import OciImage
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.polling_fleet import FleetResult
    from tests.provider_deployment import Deployment

NODES = 1000


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> OciImage:
    work = tmp_path_factory.mktemp("wheels")
    return build_image(ImageInputs.fetch(machine_arch(), image_cache(), work, host_archive())).image


@dataclass
class Phases:
    """What was done, and when, to say during which step a request failed."""

    begun: list[tuple[float, str]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        print(f"{name} …", flush=True)
        began = time.time()
        self.begun.append((began, name))
        yield
        print(f"{name}: {time.time() - began:.1f} s", flush=True)

    def of(self, moment: float) -> str:
        return next((name for began, name in reversed(self.begun) if began <= moment), "before")

    def report(self, result: FleetResult) -> str:
        found = Counter((self.of(each.at), each.kind, each.lost) for each in result.failures)
        lines = [
            f"{phase}: {count} {kind} {'LOST' if lost else 'repeated'}"
            for (phase, kind, lost), count in found.items()
        ]
        told = {each.why for each in result.failures}
        return "\n".join([*lines, *sorted(told)[:20]])


def test_nodes_do_not_notice_restart_drain_and_database_restart(
    lab: Lab, add_machine: Callable[..., EdgeMachine], tmp_path: Path, image: OciImage
) -> None:
    machines = [add_machine(f"host-{number}") for number in (1, 2)]
    for machine in machines:
        prepare(lab, machine)
        flex(machine, "bootstrap")
    phases = Phases()
    with (
        deployed_provider(lab, tmp_path, image, NODES) as (deployment, task),
        service_clients(lab, tmp_path, machines[0].name) as clients,
        polling_fleet(clients, tmp_path, task) as fleet,
    ):
        with phases.step("connect"):
            until(lambda: open_connections(clients, task.server.host) >= NODES, "all nodes poll", 300)
        with phases.step("rolling restart"):
            restart(deployment)
        with phases.step("drain"):
            drain(lab, deployment)
        with phases.step("restart of PostgreSQL"):
            deployment.database.stop()
            deployment.database.start()
            time.sleep(30)
        with phases.step("last polls"):
            result = fleet.end()
    report = phases.report(result)
    print(
        f"{result.polls} polls, {result.writes} writes, {result.connections} connections, {result.slowest}\n{report}"
    )
    assert not [each for each in result.failures if each.lost], report
    assert not result.missing
    assert not result.unseen
    assert result.polls > NODES
    assert result.writes > 100


def restart(deployment: Deployment) -> None:
    before = {pod["metadata"]["name"] for pod in deployment.pods()}
    deployment.kubectl("rollout", "restart", "deployment/aks-flex-rp")
    deployment.wait_available()
    until(lambda: not before & {pod["metadata"]["name"] for pod in deployment.pods()}, "the old pods are gone")


def drain(lab: Lab, deployment: Deployment) -> None:
    node = deployment.pods()[0]["spec"]["nodeName"]
    lab.cluster.run("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", timeout=300)
    deployment.wait_available()
    assert node not in {pod["spec"]["nodeName"] for pod in deployment.pods()}
    lab.cluster.run("uncordon", node)
