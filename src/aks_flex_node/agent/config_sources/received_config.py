"""Checks a configuration that the config source has sent, before it is stored or anything is downloaded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.config.loader import load_text, refuse_local_settings
from aks_flex_node.agent.config.resolved import has_azure_identity
from aks_flex_node.agent.identity.azure_sign_in import require_identity
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.stored_config import stored_text

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host


def check_received(host: Host, text: str, origin: str) -> None:
    """Raises ConfigError if the configuration is invalid, has settings that only this machine may set, or lacks what
    the node needs to poll the provider: a complete Azure identity, or a key that the provider has bound.
    """
    refuse_local_settings(text, origin, stored_text(host, CURRENT_CONFIG))
    config = load_text(text, origin).config
    if has_azure_identity(config) or (config.continuous_monitoring and not NodeKeyStore(host).has_bound_key):
        require_identity(config)
