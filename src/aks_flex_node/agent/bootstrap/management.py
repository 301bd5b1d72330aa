"""What a join checks for a node that a provider manages: that its daemon can connect, and what it is to apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config import config_store, loader
from aks_flex_node.agent.config.resolved import has_azure_identity
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


def refuse_temporary_vpn(loaded: LoadedConfig) -> None:
    """Raises ConfigError if only an option or the environment enables the VPN of a managed node: the provider's
    configuration would disable it and disconnect the node."""
    origin = loaded.origins.get("azure.vpn.enabled", "")
    if loaded.config.azure.vpn.enabled and origin.startswith(("flag", "environment")):
        raise ConfigError(
            "vpn-flags-not-supported",
            f"The VPN is enabled only by {origin}. The configuration of the node resource would remove it.",
            "Enable it in the node resource with `aks-flex-rp node update --name NAME --vpn`, and join with the new "
            "URL.",
        )


def stored_daemon_config() -> NodeConfig | None:
    """Returns the daemon's configuration, or None when it cannot be read."""
    try:
        return loader.load(Path(CURRENT_CONFIG)).config
    except ConfigError:
        return None


def supports_management(config: NodeConfig | None) -> bool:
    """Returns whether the stored configuration enables the daemon; an earlier join may have stored another one."""
    return config is not None and config.continuous_monitoring


def ignored_settings_warning(config: NodeConfig, known: NodeConfig | None) -> str:
    """Returns a warning if the daemon does not use the settings of this run; empty otherwise."""
    if known and config_store.applied_config_text(config) == config_store.applied_config_text(known):
        return ""
    restored = "the configuration of the node resource" if supports_management(known) else "that configuration"
    return (
        f"This run used settings that are not in {CURRENT_CONFIG} (--config, --set or the environment). The daemon "
        f"does not use them and restores {restored}."
    )


def describe_service(host: Host, node: str, *, follows: bool, has_bound_key: bool) -> str:
    """Returns what the daemon's service does from now on. `follows` tells whether the node follows a provider or a
    pool, and `has_bound_key` whether the provider has bound the key of this machine in this run.
    """
    if follows and not has_bound_key and is_key_refused(host):
        return (
            "aks-flex-node.service runs, but the provider refuses the key of this machine and does not manage this "
            f"node. Run `aks-flex-rp node join-command --name {node}` where the provider runs, and the printed "
            "command on this machine."
        )
    what = "manages this node" if follows else "watches this node"
    return f"aks-flex-node.service now {what}. `aks-flex-node status` shows its status."


def is_key_refused(host: Host) -> bool:
    """Returns whether the last response of the provider to the daemon was that the node key is revoked."""
    try:
        return bool(json.loads(host.read(DAEMON_STATE) or b"")["provider_state"] == ProviderState.KEY_REVOKED.value)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def check_management(config: NodeConfig, node: str, *, is_key_bound: bool) -> None:
    """Raises an error, before any change, if the daemon could not connect to the provider."""
    from aks_flex_node.agent.identity.azure_sign_in import require_identity
    from aks_flex_node.agent.identity.cloud_endpoints import check_cloud
    from aks_flex_node.agent.provider.provider_client import provider_endpoint

    provider_endpoint(config, node)
    check_cloud(config)
    if has_azure_identity(config) or not is_key_bound:
        require_identity(config)
