"""This machine as a node under the configuration in effect: engine, cluster client and config source.

Reopened after each change of the configuration.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import context
from aks_flex_node.agent.cluster import machine_operations, node_health
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.node_watch import NodeWatch
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config_sources.selection import open_source, operation_names
from aks_flex_node.agent.machine import running_program
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.cluster.node_watch import NodeSnapshot
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class ManagedNode:
    engine: Engine
    api: ApiClient
    name: str
    source: ConfigSource
    now: Callable[[], float] = time.time

    @property
    def host(self) -> Host:
        return self.engine.host

    @property
    def config(self) -> NodeConfig:
        return self.engine.config

    @property
    def versions(self) -> ConfigVersions:
        return ConfigVersions(self.host)

    @property
    def program(self) -> str:
        """The path of the running agent; jobs run the same version."""
        return running_program() or self.engine.machine.program

    def log_event(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        self.engine.events.emit(event, message, level, **fields)

    def check_health(self) -> NodeHealth:
        return node_health.check_node_health(self.host, self.config, self.name, self.api)

    def has_operation(self) -> bool:
        """Returns whether a MachineOperation in the cluster is for this machine."""
        try:
            names = operation_names(self.config, self.name)
            return bool(machine_operations.find_operations(self.api, names))
        except ClusterError:
            return False  # checked again later

    def watch_node(self, on_change: Callable[[NodeSnapshot], None]) -> NodeWatch | None:
        """Starts to watch this node's Node object."""
        watch = NodeWatch(lambda: node_api(self.config), self.name, on_change)
        watch.start()
        return watch

    def close(self) -> None:
        self.api.close()
        self.source.close()


def open_managed_node() -> ManagedNode:
    """Opens this machine with the configuration in effect."""
    config = loader.load(Path(CURRENT_CONFIG), {}, {}).config
    engine = context.make_engine(config)
    context.open_log_file(engine)
    name = context.node_name(engine)
    return ManagedNode(engine, node_api(engine.config), name, open_source(engine, name))
