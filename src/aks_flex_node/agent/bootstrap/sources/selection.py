"""Selects the source of a join from the options of a command line and what this machine has stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.aks_pool.pool_ids import configured_pool
from aks_flex_node.agent.bootstrap.sources.aks_pool import FromPool
from aks_flex_node.agent.bootstrap.sources.config_url import FromConfigUrl
from aks_flex_node.agent.bootstrap.sources.enrolment import FromEnrolment
from aks_flex_node.agent.bootstrap.sources.source import FromLocalFile
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.bootstrap.sources.source import JoinSource
    from aks_flex_node.agent.context import ConfigSelection
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.host.host import Host


def select_source(host: Host, selection: ConfigSelection, progress: ProgressReporter) -> JoinSource:
    """Returns the source of the configuration. Raises ConfigError if a local one is invalid."""
    selection = skip_enrolment(host, selection, progress)
    if selection.url:
        kind = FromEnrolment if selection.url.is_enrolment else FromConfigUrl
        return kind(host, selection, selection.url)
    loaded = context.load_config(selection)
    pool = configured_pool(loaded.config)
    if pool and not loaded.config.continuous_monitoring:
        return FromPool(host, selection, loaded, pool)
    return FromLocalFile(host, selection, loaded)


def skip_enrolment(host: Host, selection: ConfigSelection, progress: ProgressReporter) -> ConfigSelection:
    """Selects the stored configuration instead of the URL of an enrolment, on a machine that has joined: the provider
    would refuse it, because its key already belongs to its node.
    """
    if selection.url is None or not selection.url.is_enrolment or not NodeKeyStore(host).has_bound_key:
        return selection
    try:
        config = context.load_stored(host, CURRENT_CONFIG)
    except (ConfigError, OSError):
        return selection
    if not has_kubelet_credential(host, config):
        return selection
    node = node_state.load(host, config).node
    progress.message(
        f"This machine has joined{f' as node {node}' if node else ''}, so the URL is not used: its stored "
        "configuration is. To make this machine another node, run `aks-flex-node unbootstrap` first."
    )
    return replace(selection, config=Path(CURRENT_CONFIG), url=None)
