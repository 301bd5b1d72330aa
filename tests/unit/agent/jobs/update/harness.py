"""A node on a recorded host, and a pending configuration for it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent.bootstrap.join import NodeJoin
from aks_flex_node.agent.cluster.nodes import ClusterNode
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.remote import parse_bundle
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.update.job import UpdateJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import CURRENT_CONFIG, FAILED_CONFIG, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import WriteFile
from tests.client_certificates import client_pem
from tests.unit.agent.bootstrap.test_join import Proven
from tests.unit.agent.builders import JOIN, Ready, empty_host, engine_on
from tests.unit.agent.config.builders import Settings, load_plain, settings
from tests.unit.agent.jobs.update.fakes import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.job_records.job_result import JobResult
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig
    from tests.hosts.recorded import RecordedHost

OFFLINE = ClusterError("api-server-unreachable", "It cannot be reached.", retryable=True)
NOON = datetime(2025, 3, 5, 12, 0, tzinfo=timezone.utc)  # a Wednesday


def bundle(values: Settings | None = None, version: str = "1") -> bytes:
    text = settings({**JOIN, "kubernetes.version": "1.33.13", **(values or {})})
    return json.dumps({"config": json.loads(text), "configVersion": version}).encode()


class Noting(ProgressReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Scene:
    def __init__(self, values: Settings | None = None) -> None:
        """Creates a machine that has joined with these settings, as version 1."""
        self.host = empty_host()
        self.cluster = Cluster(self.host)
        self.watcher = Noting()
        self.now = NOON
        self.reachable: Callable[[NodeConfig], bool] = lambda _: True  # whether the API server is reachable
        self.workshop: Callable[[RecordedHost], Ready] = Ready
        made = parse_bundle(bundle(values), "test")
        self.config = load_plain(made.text).config
        engine = self.engine(self.config)
        engine.stager = Ready(self.host)
        NodeJoin(engine, Proven(self.host, self.config)).run()
        self.host.apply(WriteFile("/var/lib/kubelet/pki/kubelet-client-current.pem", client_pem().encode(), 0o600))
        config_store.commit_update(self.host, made, self.config, b"")

    def engine(self, config: NodeConfig) -> Engine:
        return engine_on(self.host, config)

    def wants(self, values: Settings | None = None, version: str = "2") -> Scene:
        self.host.apply(WriteFile(NEXT_CONFIG, bundle(values, version), 0o600))
        return self

    def bench(self) -> NodeOperations:
        return NodeOperations(
            self.host,
            self.engine,
            self.watcher,
            self._api,
            lambda _: self.workshop(self.host),
            self.cluster.environment,
            lambda: self.now,
        )

    def _api(self, config: NodeConfig) -> ApiClient:
        if not self.reachable(config):
            self.cluster.away = OFFLINE
        elif self.cluster.away is OFFLINE:
            self.cluster.away = None
        return cast("ApiClient", self.cluster)

    def run(self, *, node_released: bool = False) -> JobResult:
        self.host.done.clear()
        return UpdateJob(self.bench(), node_released).run()

    def succeeds(self, *, node_released: bool = False) -> JobResult:
        outcome = self.run(node_released=node_released)
        assert outcome.result is JobStatus.DONE, outcome
        return outcome

    def fails(self, reason: str) -> JobResult:
        """Runs the job, which fails with this reason and is to be retried."""
        outcome = self.run()
        assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, reason, True)
        return outcome

    def rolls_back(self, reason: str) -> JobResult:
        outcome = self.run()
        assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, reason)
        return outcome

    @property
    def restarted(self) -> list[str]:
        return [one.started_unit for one in self.host.done if one.started_unit]

    @property
    def current(self) -> str:
        """Returns the current version, and checks that all files agree."""
        document = self.document(CURRENT_CONFIG)
        version = (self.host.read("/var/lib/aks-flex-node/config-version.txt") or b"").decode().strip()
        assert version == document["configVersion"]
        return version

    def document(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.host.read(path) or b"{}")
        return found

    @property
    def kubelet_settings(self) -> str:
        return (self.host.read("/var/lib/kubelet/config.yaml") or b"").decode()

    @property
    def waits(self) -> bool:
        return self.host.stat(NEXT_CONFIG) is not None

    @property
    def under_way(self) -> bool:
        return self.host.stat(UPDATE_JOURNAL) is not None

    @property
    def failed(self) -> dict[str, Any]:
        return self.document(FAILED_CONFIG)

    @property
    def node(self) -> ClusterNode:
        return ClusterNode.read(self.cluster.shown())
