"""This machine as a node under the configuration in effect: engine, cluster client and, if managed, provider client.

Reopened after each change of the configuration.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import context
from aks_flex_node.agent.cluster import node_health, nodes
from aks_flex_node.agent.cluster.client import ApiStatusError, node_api
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.machine import identify_machine, running_program
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.provider.poll_result import PollResult
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class ManagedNode:
    engine: Engine
    api: ApiClient
    name: str
    provider: ProviderClient | None  # None for a standalone node: its configuration names no provider to follow
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

    def is_another_machine(self) -> bool:
        """Returns whether the Node certainly lives on another machine: its kubelet reported from another boot.

        The ID of a machine can change while its kubelet runs, so it does not prove that.
        """
        try:
            node = nodes.find(self.api, self.name)
        except (ClusterError, ApiStatusError):
            return False
        here = (self.host.read(BOOT_ID) or b"").decode(errors="replace").strip()
        return bool(node and here and node.boot_id and node.boot_id != here)

    def probe_provider(self, text: str) -> PollResult:
        """Polls the provider once with the endpoint and the credentials of another configuration."""
        config = loader.load_text(text, NEXT_CONFIG, {}, {}).config
        program, machine = (
            (self.provider.tokens.program, self.provider.machine) if self.provider else (self.program, None)
        )
        tokens = ProviderTokens(program, lambda: text)
        other = ProviderClient(provider_endpoint(config, self.name), config, tokens, machine=machine)
        try:
            return other.poll("", 0)
        finally:
            other.close()

    def close(self) -> None:
        self.api.close()
        if self.provider:
            self.provider.close()


def open_managed_node() -> ManagedNode:
    """Opens this machine with the configuration in effect."""
    config = loader.load(Path(CURRENT_CONFIG), {}, {}).config
    engine = context.make_engine(config)
    context.open_log_file(engine)
    name = context.node_name(engine)
    provider = _open_provider(engine, name) if config.continuous_monitoring else None
    return ManagedNode(engine, node_api(engine.config), name, provider)


def _open_provider(engine: Engine, name: str) -> ProviderClient:
    program = running_program() or engine.machine.program
    tokens = ProviderTokens(program, lambda: Path(CURRENT_CONFIG).read_text(), _next_config_text)
    endpoint = provider_endpoint(engine.config, name)
    machine = identify_machine(engine.host, endpoint.origin)
    return ProviderClient(endpoint, engine.config, tokens, machine=machine)


def _next_config_text() -> str:
    """Returns the text of the next configuration, which may have a valid secret after the current one expired."""
    return Path(NEXT_CONFIG).read_text() if Path(NEXT_CONFIG).exists() else ""
