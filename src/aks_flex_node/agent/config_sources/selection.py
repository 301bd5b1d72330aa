"""Selects the config source of a node from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.config_sources.source import ConfigSource, LocalSource, SourceDescription, SourceKind
from aks_flex_node.agent.machine import identify_machine, running_program
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.engine import Engine


def describe_source(config: NodeConfig, node: str) -> SourceDescription:
    """Returns the config source that a configuration selects, without opening it."""
    if config.continuous_monitoring:
        try:
            return SourceDescription(SourceKind.PROVIDER, provider_endpoint(config, node).origin)
        except ConfigError:
            return SourceDescription(SourceKind.PROVIDER, config.provider.url or "")
    return LocalSource().description


def open_source(engine: Engine, node: str) -> ConfigSource:
    """Opens the config source of this machine."""
    if not engine.config.continuous_monitoring:
        return LocalSource()
    endpoint = provider_endpoint(engine.config, node)
    machine = identify_machine(engine.host, endpoint.origin)
    client = ProviderClient(endpoint, engine.config, _node_tokens(engine), machine=machine)
    return ProviderSource(client, engine.config, node)


def _node_tokens(engine: Engine) -> ProviderTokens:
    program = running_program() or engine.machine.program
    return ProviderTokens(program, lambda: Path(CURRENT_CONFIG).read_text(), _next_config_text)


def _next_config_text() -> str:
    """Returns the text of the next configuration, which may have a valid secret after the current one expired."""
    return Path(NEXT_CONFIG).read_text() if Path(NEXT_CONFIG).exists() else ""
