"""A node on a machine that is only written down, and a configuration that waits for it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent.cluster.nodes import Node
from aks_flex_node.agent.components.agent import CURRENT, FAILED, NEXT, UPDATE
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.fetching.bundles import read_bundle
from aks_flex_node.agent.joining import Join
from aks_flex_node.agent.updating.update import Update
from aks_flex_node.agent.updating.workbench import Workbench
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import RestartUnit, StartUnit, WriteFile
from tests.unit.agent.config.samples import settings
from tests.unit.agent.given import JOIN, Ready, empty_host, engine_on
from tests.unit.agent.test_joining import Proven
from tests.unit.agent.updating.clusters import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.works import Outcome
    from aks_flex_node.host.dry import RecordedHost

OFFLINE = ClusterError("api-server-unreachable", "It cannot be reached.", again=True)
NOON = datetime(2025, 3, 5, 12, 0, tzinfo=timezone.utc)  # a Wednesday


def bundle(values: dict[str, object] | None = None, version: str = "1") -> bytes:
    text = settings({**JOIN, "kubernetes.version": "1.33.13", **(values or {})})
    return json.dumps({"config": json.loads(text), "configVersion": version}).encode()


class Noting(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Scene:
    def __init__(self, values: dict[str, object] | None = None) -> None:
        """A machine that has joined with these settings, as version 1."""
        self.host = empty_host()
        self.cluster = Cluster(self.host)
        self.watcher = Noting()
        self.now = NOON
        self.reachable: Callable[[NodeConfig], bool] = lambda _: True  # whether the API server is where it says
        self.workshop: Callable[[RecordedHost], Ready] = Ready
        made = read_bundle(bundle(values), "test")
        self.config = load_text(made.text, "test", {}, {}).config
        engine = self.engine(self.config)
        engine.workshop = Ready(self.host)
        Join(engine, Proven(self.host, self.config)).run()
        self.host.do(WriteFile("/var/lib/kubelet/pki/kubelet-client-current.pem", b"PEM", 0o600))
        keeping.settle_update(self.host, made, self.config, b"")

    def engine(self, config: NodeConfig) -> Engine:
        return engine_on(self.host, config)

    def wants(self, values: dict[str, object] | None = None, version: str = "2") -> Scene:
        self.host.do(WriteFile(NEXT, bundle(values, version), 0o600))
        return self

    def bench(self) -> Workbench:
        return Workbench(
            self.host,
            self.engine,
            self.watcher,
            self._api,
            lambda _: self.workshop(self.host),
            self.cluster.world,
            lambda: self.now,
        )

    def _api(self, config: NodeConfig) -> Api:
        if not self.reachable(config):
            self.cluster.away = OFFLINE
        elif self.cluster.away is OFFLINE:
            self.cluster.away = None
        return cast("Api", self.cluster)

    def run(self) -> Outcome:
        self.host.done.clear()
        return Update(self.bench()).run()

    @property
    def restarted(self) -> list[str]:
        return [one.name for one in self.host.done if isinstance(one, RestartUnit | StartUnit)]

    @property
    def current(self) -> str:
        """The version that is in effect, which all files agree about."""
        document = self.document(CURRENT)
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
        return self.host.look(NEXT) is not None

    @property
    def under_way(self) -> bool:
        return self.host.look(UPDATE) is not None

    @property
    def failed(self) -> dict[str, Any]:
        return self.document(FAILED)

    @property
    def node(self) -> Node:
        return Node.read(self.cluster.shown())
