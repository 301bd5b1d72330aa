"""What a join needs before components are applied: cluster facts from Azure, Azure Arc, the VPN, and the
provider's admission. Also how these are undone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, terminal
from aks_flex_node.agent.bootstrap import cluster_discovery
from aks_flex_node.agent.bootstrap.join import PrerequisiteStage
from aks_flex_node.agent.components.agent import APPLIED_CONFIG
from aks_flex_node.agent.config.resolved import kubelet_auth, target_cluster
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import FlexError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.bootstrap.cluster_discovery import ClusterFacts
    from aks_flex_node.agent.bootstrap.unbootstrap import AzureCleanup
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.provider.provider_client import ProviderClient
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host

ANNOUNCE_SECONDS = 120.0


def discover_cluster(config: NodeConfig) -> tuple[NodeConfig, ClusterFacts | None]:
    """The configuration with what Azure says of the cluster, where it leaves that out; and that by itself, when Azure
    was asked. Changes nothing."""

    def ask() -> ClusterFacts:
        from aks_flex_node.agent.identity.azure_sign_in import open_arm

        terminal.print_message(f"Asking Azure about {cluster_discovery.cluster_id(config)}.")
        with open_arm(config, operator=True) as azure:
            return cluster_discovery.discover(config, azure)

    kept = cluster_discovery.stored_facts(RealHost())
    return cluster_discovery.complete_from_azure(
        config, kept, ask, terminal.print_message, joined=Path(APPLIED_CONFIG).exists()
    )


def prerequisite_stages(engine: Engine, note: Callable[[str], None]) -> list[PrerequisiteStage]:
    config, found = engine.config, []
    if config.azure.arc.enabled:
        from aks_flex_node.agent.arc.registration import ArcRegistration

        phases = (Phase.ARC_REGISTERING, Phase.ARC_REGISTERED, Phase.ARC_FAILED)
        found.append(
            PrerequisiteStage("arc", "Azure Arc knows this machine", *phases, ArcRegistration(engine, note).run)
        )
    if config.azure.vpn.enabled:
        from aks_flex_node.agent.vpn.connection import VpnConnection

        phases = (Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED, Phase.VPN_FAILED)
        found.append(
            PrerequisiteStage("vpn", "a tunnel to the cluster's network", *phases, VpnConnection(engine, note).run)
        )
    return found


def azure_cleanups(engine: Engine, note: Callable[[str], None]) -> list[AzureCleanup]:
    """How what was made in Azure for this machine goes again. The configuration may have changed since, so it is what
    was written down that counts."""
    from aks_flex_node.agent.arc.registration import ArcRegistration
    from aks_flex_node.agent.vpn.connection import VpnConnection

    return [
        ("vpn", "the gateway forgets this machine", VpnConnection(engine, note).remove_from_azure),
        ("arc", "Azure Arc forgets this machine", ArcRegistration(engine, note).unregister),
    ]


def describe_azure_cleanup(host: Host, config: NodeConfig) -> list[str]:
    """What `take_back` would do, by what was written down."""
    from aks_flex_node.agent.arc.registration_state import ArcRecordStore
    from aks_flex_node.agent.vpn import local_state as vpn

    arc, tunnel = ArcRecordStore(host, config).read(), vpn.read_record(host, config)
    gateways = [*([tunnel.gateway] if tunnel.roots else []), *(gateway for gateway, _ in tunnel.former)]
    found = [f"take this machine's certificate off {each}" for each in dict.fromkeys(gateways)]
    found += [f"delete the role assignment {each}" for each in arc.assignments]
    found += [f"take {arc.machine} out of Azure Arc"] if arc.connected else []
    return [*found, *(["remove azcmagent, its users and its directories"] if arc.installed else [])]


def provider_announcement(engine: Engine, loaded: LoadedConfig) -> Callable[[], None] | None:
    """How this node shows itself to its provider, where that has to let it in; None where nobody has to."""
    config = engine.config
    if kubelet_auth(config) == "bootstrapToken" or not config.provider.url or target_cluster(config) is None:
        return None

    def introduce() -> None:
        from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
        from aks_flex_node.agent.provider.provider_tokens import ProviderTokens

        # As whom its kubelet will come: what a join before this one has kept may name somebody else.
        node = context.node_name(engine)
        tokens = ProviderTokens(engine.machine.program, loaded.text)
        _announce_with_retry(ProviderClient(provider_endpoint(config, node), config, tokens))

    return introduce


def _announce_with_retry(provider: ProviderClient) -> None:
    """The provider may be away for a moment, or not know yet that Azure has given us our roles."""
    from aks_flex_node.agent.provider.provider_client import ProviderRequestError, announce_node

    end, pause = time.monotonic() + ANNOUNCE_SECONDS, 1.0
    while True:
        try:
            return announce_node(provider)
        except ProviderRequestError as without:
            verdict = without.result
            if time.monotonic() + pause > end or not verdict.is_transient:
                raise FlexError(
                    "introduction-failed",
                    f"The provider did not let this node in: {verdict.message}",
                    "Look at the resource: `aks-flex-rp node show`. Its azureAuth must name this node's identity.",
                    again=True,
                ) from None
        finally:
            provider.close()
        time.sleep(pause)
        pause = min(pause * 2, 15.0)
