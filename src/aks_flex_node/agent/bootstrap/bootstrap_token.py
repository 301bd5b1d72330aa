"""Replaces the bootstrap token of a managed node by a new one from its config source.

A token works for one certificate. It is used up when a power cut loses the certificate that it was used for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import credentials
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config.resolved import kubelet_auth
from aks_flex_node.agent.config_sources.selection import open_source
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.settings.base import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config_sources.source import BootstrapTokenGrant, ConfigSource
    from aks_flex_node.agent.reconcile.engine import Engine


def token_renewal(engine: Engine, node: str, note: Callable[[str], None]) -> Callable[[], bool] | None:
    """Returns a function that renews the bootstrap token of a managed node during its join, and returns whether it
    did. None if the node joins in another way.
    """
    if not engine.config.continuous_monitoring or kubelet_auth(engine.config) != "bootstrapToken":
        return None
    return lambda: renew_token(engine, open_source(engine, node), note)


def renew_token(engine: Engine, source: ConfigSource, note: Callable[[str], None]) -> bool:
    """Requests and installs a new bootstrap token; returns whether there is one."""
    try:
        grant = source.issue_bootstrap_token()
    except (ProviderRequestError, FlexError) as error:
        note(f"the bootstrap token is used up, and no new one was issued: {error}")
        return False
    finally:
        source.close()
    if grant is None:
        return False
    note("the bootstrap token is used up: the provider issued a new one")
    install_bootstrap_token(engine, grant)
    return True


def install_bootstrap_token(engine: Engine, grant: BootstrapTokenGrant) -> None:
    """Installs a new bootstrap token, for the kubelet to request a certificate."""
    host, azure = engine.host, engine.config.azure
    document = json.loads((host.read(CURRENT_CONFIG) or b"").decode())
    document["config"].setdefault("azure", {})["bootstrapToken"] = dict(grant.settings)
    text = json.dumps(document, indent=1) + "\n"
    token = load_text(text, CURRENT_CONFIG).config.azure.bootstrap_token
    engine.config = replace(engine.config, azure=replace(azure, bootstrap_token=token))
    if grant.is_stored:
        host.apply(WriteFile(CURRENT_CONFIG, text.encode(), 0o600, secret=True))
    engine.apply(credentials.COMPONENT)
