"""Installs, updates or leaves out the daemon's systemd service after a join."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.components.agent import CURRENT_CONFIG
from aks_flex_node.agent.config import config_store, loader
from aks_flex_node.agent.context import DaemonMode
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.jobs import self_update
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine


def set_up_daemon(
    engine: Engine, loaded: LoadedConfig, stays: DaemonMode | None, progress: ProgressReporter, *, follows: bool
) -> None:
    """Leave the agent that stays what it goes by, and bring it here, or take it away."""
    if follows and not supports_management(stored_daemon_config()):
        # With Arc, a service principal is its operator's, and was perhaps given for this one run.
        config_store.save_local(
            engine.host, loaded.text("azure.servicePrincipal." if identity_kind(loaded.config) == "arc" else "-")
        )
    if (follows or context.is_managed()) and (
        unexpected := ignored_settings_warning(loaded.config, stored_daemon_config(), stays)
    ):
        progress.warning(unexpected)
    if stays is DaemonMode.AS_A_SERVICE:
        told = self_update.install_service(engine)
        if not told.is_done:
            progress.warning(told.message)


def stored_daemon_config() -> NodeConfig | None:
    """What the agent that stays goes by; None when there is nothing that can be read."""
    try:
        return loader.load(Path(CURRENT_CONFIG), {}, {}).config
    except ConfigError:
        return None


def supports_management(config: NodeConfig | None) -> bool:
    """Whether an agent can stay with what is kept: a join before this one may have kept something else."""
    return config is not None and config.continuous_monitoring


def ignored_settings_warning(config: NodeConfig, known: NodeConfig | None, stays: DaemonMode | None) -> str:
    """What whoever gave this command may not expect of a node that is followed."""
    if stays is DaemonMode.AS_A_SERVICE and not config.continuous_monitoring:
        return "The configuration does not ask for an agent that stays: this node is no longer followed."
    if known and config_store.applied_config_text(config) == config_store.applied_config_text(known):
        return ""
    return (
        f"This run went by settings that are not in {CURRENT_CONFIG} (--config, --set or the environment). The agent "
        "that stays does not know them, and brings back what its resource says."
    )


def check_management(config: NodeConfig, node: str) -> None:
    """Refuse before anything is changed what could not be followed afterwards."""
    from aks_flex_node.agent.identity.azure_sign_in import require_identity
    from aks_flex_node.agent.identity.cloud_endpoints import check_cloud
    from aks_flex_node.agent.provider.provider_client import provider_endpoint

    provider_endpoint(config, node)
    check_cloud(config)
    require_identity(config)
