"""Selects the config source of a node from its configuration."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.aks_pool.pool_ids import PoolId, configured_pool, machine_name
from aks_flex_node.agent.aks_pool.registration import this_host
from aks_flex_node.agent.cluster.client import ApiStatusError, node_api
from aks_flex_node.agent.config.resolved import config_source_kind
from aks_flex_node.agent.config_sources.pool_source import PoolSource, arm_client
from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.config_sources.source import ConfigSource, LocalSource, SourceDescription, SourceKind
from aks_flex_node.agent.identity.node_key import NodeKeyStore, StoredKey
from aks_flex_node.agent.machine import identify_machine, running_program
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.key_rotation import KeyRotation, rotate_key
from aks_flex_node.agent.provider.node_assertions import NodeAssertions
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderRequestError, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.agent.stored_config import parse_config, stored_text
from aks_flex_node.errors import ClusterError, ConfigError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig

PATCH_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


def describe_source(config: NodeConfig, node: str) -> SourceDescription:
    """Returns the config source that a configuration selects, without opening it."""
    kind, pool = config_source_kind(config), configured_pool(config)
    if kind == "provider":
        try:
            return SourceDescription(SourceKind.PROVIDER, provider_endpoint(config, node).origin)
        except ConfigError:
            return SourceDescription(SourceKind.PROVIDER, config.provider.url or "")
    if kind == "aksPool" and pool:
        return SourceDescription(SourceKind.AKS_POOL, str(pool), machine_name(config, node))
    return local_source(config).description


def open_source(engine: Engine, node: str) -> ConfigSource:
    """Opens the config source of this machine."""
    config = engine.config
    kind, pool = config_source_kind(config), configured_pool(config)
    if kind == "provider":
        endpoint = provider_endpoint(config, node)
        machine = identify_machine(engine.host, endpoint.origin)
        program = running_program() or engine.machine.program
        assertions = _assertions_of(program, endpoint.resource_id)
        client = ProviderClient(endpoint, config, _tokens_of(program), assertions, machine=machine)
        return ProviderSource(client, config, node, rotation=_rotation_of(program))
    if kind == "aksPool" and pool:
        tokens = _tokens_of(running_program() or engine.machine.program)
        name, client = machine_name(config, node), arm_client(config, tokens)
        return PoolSource(
            config,
            pool,
            name,
            tokens,
            client,
            lambda: parse_config(stored_text(engine.host, CURRENT_CONFIG)),
            issue_pool_token,
            lambda: read_server_version(config),
            this_host(engine.host),
        )
    return local_source(config)


def rotate_node_key(engine: Engine, node: str) -> StoredKey:
    """Replaces the key of this node, or has its first one bound. Raises ProviderRequestError if that fails."""
    source = open_source(engine, node)
    if not isinstance(source, ProviderSource):
        message = "No provider manages this node, so it has no use for a key."
        raise ProviderRequestError(PollResult(ProviderState.STANDALONE, message))
    try:
        if source.client.assertions:
            source.client.assertions.in_process = True
        return rotate_key(source.client, NodeKeyStore(engine.host))
    finally:
        source.close()


def local_source(config: NodeConfig) -> LocalSource:
    """Returns the source of a standalone node. A node that joined a pool by a file has no identity to follow it."""
    pool = configured_pool(config)
    note = f"The node joined {pool}, but has no Azure identity to follow it." if pool else ""
    return LocalSource(SourceDescription(SourceKind.LOCAL, CURRENT_CONFIG, note=note))


def waits_for_node_deletion(config: NodeConfig) -> bool:
    """Returns whether a change that disturbs pods must wait until the source has deleted the Node."""
    return config_source_kind(config) == "aksPool" and config.aks.upgrade_trigger == "nodeDeleted"


def issue_pool_token(config: NodeConfig, pool: PoolId) -> Mapping[str, Any]:
    """Requests a new bootstrap token from the pool, as this node. Only short-lived processes call it."""
    from aks_flex_node.agent.aks_pool.pool_client import open_pool

    with open_pool(config, pool) as client:
        return {"token": client.bootstrap_data().token.reveal()}


def read_server_version(config: NodeConfig) -> str:
    """Returns the version of the API server without a suffix; empty if it does not answer."""
    with contextlib.suppress(ClusterError, ApiStatusError):
        api = node_api(config)
        try:
            found = PATCH_VERSION.match(str(api.get("/version").get("gitVersion", "")))
            return found[1] if found else ""
        finally:
            api.close()
    return ""


@functools.cache
def _assertions_of(program: str, subject: str) -> NodeAssertions:
    """Returns the assertions of this process, which its sessions share: they are signed by a child process."""
    return NodeAssertions(program, RealHost(), subject)


@functools.cache
def _rotation_of(program: str) -> KeyRotation:
    return KeyRotation(program, RealHost())


@functools.cache
def _tokens_of(program: str) -> ProviderTokens:
    """Returns the tokens of this process, which its sessions share: a sign-in is expensive."""
    return ProviderTokens(program, lambda: Path(CURRENT_CONFIG).read_text(), _next_config_text)


def _next_config_text() -> str:
    """Returns the text of the next configuration, which may have a valid secret after the current one expired."""
    return Path(NEXT_CONFIG).read_text() if Path(NEXT_CONFIG).exists() else ""
