"""The provider as two replicas in a cluster: nodes that poll do not notice restarts and drains."""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.polling_fleet import running_fleet
from tests.provider_deployment import NodeNetwork, deployed_provider
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.images.builder import OciImage
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.polling_fleet import FleetResult
    from tests.provider_deployment import Deployment

OUTAGE_SECONDS = 5.0  # of PostgreSQL; requests wait twice as long
REFUSED = "would violate the pod's disruption budget"


@dataclass
class Phases:
    """What was done, and when, to say during which step a request failed."""

    begun: list[tuple[float, str]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
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
        reasons = sorted({each.why for each in result.failures})
        slowest = {kind: round(seconds, 1) for kind, seconds in result.slowest.items()}
        figures = f"{result.polls} polls, {result.writes} writes, {result.connections} connections, slowest {slowest}"
        return "\n".join([figures, *lines, *reasons[:20]])


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_nodes_do_not_notice_restart_drain_and_database_restart(
    lab: Lab, nodes: list[EdgeMachine], tmp_path: Path, image: OciImage, count: int
) -> None:
    clients, phases = NodeNetwork(nodes[0]), Phases()
    with (
        deployed_provider(lab, tmp_path, image, count) as (deployment, task),
        running_fleet(tmp_path, task, clients.command()) as fleet,
    ):
        with phases.step("connect"):
            until(lambda: clients.connections(task.server.host) >= count, "all nodes poll", 300)
        assert deployment.node_names() == {machine.name for machine in nodes}
        assert set(deployment.database_sessions()) == {"TLSv1.3"}
        with phases.step("rolling restart"):
            restart(deployment)
        assert deployment.node_names() == {machine.name for machine in nodes}
        first, second = (machine.name for machine in nodes)
        with phases.step("drain of one node"):
            drain(lab, deployment, first)
        with phases.step("drain of the node with both replicas"):
            assert REFUSED in drain(lab, deployment, second)
        with phases.step("outage of PostgreSQL"):
            deployment.database.stop()
            time.sleep(OUTAGE_SECONDS)
            deployment.database.start()
            time.sleep(20)
        with phases.step("crash of PostgreSQL"):
            deployment.database.stop(signal.SIGQUIT)
            deployment.database.start()
            time.sleep(20)
        with phases.step("last polls"):
            result = fleet.end()
    report = phases.report(result)
    print(report)
    assert not [each for each in result.failures if each.lost], report
    assert not result.missing
    assert not result.unseen
    assert result.polls > count
    assert result.writes > 100


def restart(deployment: Deployment) -> None:
    before = {pod["metadata"]["name"] for pod in deployment.pods()}
    deployment.kubectl("rollout", "restart", "deployment/aks-flex-rp")
    deployment.wait_available()
    until(lambda: not before & {pod["metadata"]["name"] for pod in deployment.pods()}, "the old pods are gone")


def drain(lab: Lab, deployment: Deployment, node: str) -> str:
    """Drains a node until both replicas run on the other one; returns what was reported about it."""
    # Pods of other tests have no controller, without which a drain needs --force.
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
    done = lab.cluster.run("drain", node, *options, timeout=300)
    deployment.wait_available()
    assert node not in deployment.node_names()
    lab.cluster.run("uncordon", node)
    return done.err
