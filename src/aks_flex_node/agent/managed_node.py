"""This machine as a node under the configuration in effect: engine, cluster client and config source.

Reopened after each change of the configuration.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import context
from aks_flex_node.agent.cluster import machine_operations, node_health, nodes
from aks_flex_node.agent.cluster.client import NODE_SECONDS, ApiClient, ApiStatusError, node_api
from aks_flex_node.agent.cluster.node_watch import NodeSnapshot, NodeWatch
from aks_flex_node.agent.config_sources.selection import open_source
from aks_flex_node.agent.machine import running_program
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.host.system import UnitCache
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.machine_operations import MachineOperation
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@frozen
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

    @cached_property
    def units(self) -> UnitCache:
        """The states of the node's services."""
        return UnitCache(self.host, (*node_health.NODE_SERVICES, "node-problem-detector.service"))

    def check_health(self) -> NodeHealth:
        return node_health.check_node_health(self.host, self.config, self.name, self.api, unit=self.units.unit)

    def is_another_machine(self) -> bool:
        """Returns whether the Node certainly lives on another machine: its kubelet reported from another boot.

        The ID of a machine can change while its kubelet runs, so it does not prove that.
        """
        try:
            node = nodes.find(self.api, self.name)
        except (ClusterError, ApiStatusError):
            return False
        here = read_text(self.host, BOOT_ID).strip()
        return bool(node and here and node.boot_id and node.boot_id != here)

    def has_operation(self) -> bool:
        """Returns whether a MachineOperation in the cluster is to be carried out on this machine."""
        if not self.config.aks.machine_operations:
            return False
        try:
            return self.select_operation() is not None
        except ClusterError:
            return False  # checked again later

    def select_operation(self) -> MachineOperation | None:
        """Returns the MachineOperation to carry out on this machine."""
        record, machine = machine_operations.read_record(self.host), self.source.description.machine or self.name
        joined = node_state.load(self.host, self.config).since
        return record.select(machine_operations.find_operations(self.api, machine, record.uid), joined)

    def watch_node(self, on_change: Callable[[NodeSnapshot], None]) -> NodeWatch | None:
        """Starts to watch this node's Node object."""
        watch = NodeWatch(lambda: node_api(self.config), self.name, on_change)
        watch.start()
        return watch

    def close(self) -> None:
        self.api.close()
        self.source.close()


def open_managed_node() -> ManagedNode:
    """Opens this machine with the configuration in effect, or the one applied last if that is damaged."""
    config, is_complete = context.config_or_applied()
    engine = context.make_engine(config)
    engine.config_complete = is_complete
    context.open_log_file(engine)
    name = context.node_name(engine)
    return ManagedNode(engine, node_api(engine.config, NODE_SECONDS), name, open_source(engine, name))
