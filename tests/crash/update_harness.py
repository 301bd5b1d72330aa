"""Updates of a simulated node, whose cluster survives the processes on the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent import stored_config
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.jobs.update.job import UpdateJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import CONFIG_JOURNAL, CONFIG_VERSION_FILE, CURRENT_CONFIG, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.host.actions import Run, WriteFile
from tests.crash import harness
from tests.unit.agent.builders import pending_actions
from tests.unit.agent.config.builders import Settings, settings
from tests.unit.agent.jobs.update.fakes import Cluster, pod

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.job_records.job_result import JobResult
    from tests.crash.crash_points import SimulatedHost

BROKEN = "1.34.9"  # a kubelet version that does not work
SETTING: Settings = {"node.maxPods": 50, "node.labels": {"site": "b"}}
UPGRADE: Settings = {
    **SETTING,
    "kubernetes.version": "1.34.4",
    "containerd.version": "2.5.0",
    "runc.version": "1.6.0",
    "cni.version": "1.10.0",
}
ROTATION: Settings = {
    "azure.servicePrincipal.clientId": "11111111-2222-3333-4444-555555555555",
    "azure.servicePrincipal.clientSecret": "a-new-secret",
}
ROLLBACK: Settings = {**UPGRADE, "kubernetes.version": BROKEN}


class LastingCluster(Cluster):
    """A cluster whose Node is stored on disk and survives a crash; each change of it is an action."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self.node = json.loads(host.query("see-node").out) or self.node
        self.broken = frozenset([BROKEN])
        self.pods = [pod("agent", "DaemonSet")]

    def patch(self, body: dict[str, Any]) -> dict[str, Any]:
        super().patch(body)
        self.host.apply(Run(("change-node",), "change the Node", json.dumps(self.node).encode()))
        return {}


def bundle(values: Settings, version: str) -> bytes:
    text = settings({**harness.SETTINGS, **values})
    return json.dumps({"config": json.loads(text), "configVersion": version}).encode()


def follow(host: SimulatedHost) -> None:
    """Gives the machine a configuration of the provider."""
    config_store.commit_update(host, parse_bundle(bundle({}, "1"), "test"), harness.CONFIG, b"")


def wait(host: SimulatedHost, values: Settings) -> None:
    host.apply(WriteFile(NEXT_CONFIG, bundle(values, "2"), 0o600, secret=True))


def run(host: SimulatedHost) -> JobResult:
    """Runs one complete update, as a new process does."""
    cluster = LastingCluster(host)
    bench = NodeOperations(
        host,
        lambda config: harness.engine(host, config),
        ProgressReporter(),
        lambda _: cast("ApiClient", cluster),
        lambda _: harness.StagingWorkshop(host),
        cluster.environment,
    )
    return UpdateJob(bench).run()


def update(host: SimulatedHost) -> list[str]:
    """Applies the pending configuration, or completes an interrupted update; returns the flaws afterwards."""
    run(host)
    return flaws(host)


def flaws(host: SimulatedHost) -> list[str]:
    """Returns what must not be true of a machine and its Node while no job runs."""
    current = stored_config.read_stored(host, CURRENT_CONFIG, {})
    assert current
    found = [f"{name}: {action}" for name, action in pending_actions(harness.engine(host, current.config))]
    if (host.read(CONFIG_VERSION_FILE) or b"").decode().strip() != current.version:
        found.append("the version is not that of the configuration")
    found += [path for path in (UPDATE_JOURNAL, CONFIG_JOURNAL) if host.stat(path)]
    if LastingCluster(host).cordoned:
        found.append("the node is cordoned")
    return found


def overtaken(host: SimulatedHost) -> list[str]:
    """Receives a newer configuration that pauses updates; returns the flaws afterwards."""
    host.apply(WriteFile(NEXT_CONFIG, bundle({**UPGRADE, "updatePolicy.paused": True}, "3"), 0o600, secret=True))
    return update(host)
