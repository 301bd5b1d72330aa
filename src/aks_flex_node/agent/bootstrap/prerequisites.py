"""What a join needs before components are applied: cluster facts from Azure, Azure Arc, the VPN, and the
provider's admission. Also how these are undone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap.join import PrerequisiteStage, initialize
from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.config.resolved import kubelet_auth, target_cluster
from aks_flex_node.agent.paths import APPLIED_CONFIG, state_file
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import ARC_PHASES, Phase
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.discovery import ClusterFacts
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.provider.provider_client import ProviderClient
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host

    AzureCleanup = tuple[str, str, Callable[[], list[str]]]  # its name, its title, and how; what is left to type

ANNOUNCE_SECONDS = 120.0


def discover_cluster(config: NodeConfig, progress: ProgressReporter) -> tuple[NodeConfig, ClusterFacts | None]:
    """The configuration with what Azure says of the cluster, where it leaves that out; and that by itself, when Azure
    was asked. Changes nothing."""

    def ask() -> ClusterFacts:
        from aks_flex_node.agent.identity.azure_sign_in import open_arm

        progress.message(f"Asking Azure about {discovery.cluster_id(config)}.")
        with open_arm(config, operator=True) as azure:
            return discovery.discover(config, azure)

    stored = discovery.stored_facts(RealHost())
    return discovery.complete_from_azure(config, stored, ask, progress.message, joined=Path(APPLIED_CONFIG).exists())


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


def register_with_arc(engine: Engine, note: Callable[[str], None]) -> None:
    """Registers this machine with Azure Arc by itself, apart from a join."""
    from aks_flex_node.agent.arc.registration import ArcRegistration

    initialize(engine, ProgressReporter())
    _save_arc_phase(engine, Phase.ARC_REGISTERING)
    try:
        ArcRegistration(engine, note).run(afresh=True)
    except FlexError as error:
        _save_arc_phase(engine, Phase.ARC_FAILED, step="arc", error=error.name, message=error.message)
        raise
    _save_arc_phase(engine, Phase.ARC_REGISTERED)


def unregister_from_arc(engine: Engine, note: Callable[[str], None]) -> list[str]:
    """Takes this machine out of Azure Arc; returns the commands that are left to somebody else."""
    from aks_flex_node.agent.arc.registration import ArcRegistration

    left = ArcRegistration(engine, note).unregister()
    _save_arc_phase(engine, Phase.NOT_STARTED)
    return left


def refuse_arc_in_use(config: NodeConfig) -> None:
    """A node that has nothing else to show would lose its cluster, or its provider, when its token ends."""
    from aks_flex_node.agent.identity.azure_sign_in import identity_kind

    if identity_kind(config) == "arc" and (kubelet_auth(config) == "exec" or config.continuous_monitoring):
        raise MachineError(
            "arc-in-use",
            "This machine is a node that signs in as the machine that Azure Arc knows. Nothing was changed.",
            "Take the node apart: `aks-flex-node unbootstrap` ends Arc, too. Or give it another identity first.",
        )


def _save_arc_phase(engine: Engine, phase: Phase, **changes: str) -> None:
    """A node, or one in the making, is not set back by what is done about Arc."""
    file = state_file(engine.config.paths.data_dir)
    state = node_state.read(engine.host, file)
    if state.phase is Phase.NOT_STARTED or state.phase in ARC_PHASES:
        node_state.write(engine.host, file, state.with_phase(phase, **changes))


def connect_vpn(
    engine: Engine, note: Callable[[str], None], *, auto_provision: bool, adopt: bool, renew: bool
) -> None:
    """Connects this machine to the cluster's network by itself, apart from a join."""
    from aks_flex_node.agent.vpn.connection import VpnConnection

    if not engine.config.azure.vpn.enabled:
        raise ConfigError(
            "vpn-not-enabled",
            "The configuration wants no VPN (azure.vpn.enabled), so the next join would take it away again.",
            "Set azure.vpn.enabled: true.",
        )
    initialize(engine, ProgressReporter())
    context.open_log_file(engine)
    VpnConnection(engine, note, make=auto_provision, adopt=adopt, renew=renew).run()


def remove_vpn(engine: Engine, progress: ProgressReporter, *, gateway: bool) -> list[str]:
    """Takes the VPN off this machine, and this machine off the gateway; returns what is left to type by hand."""
    from aks_flex_node.agent.components.vpn import COMPONENT
    from aks_flex_node.agent.vpn import disconnect
    from aks_flex_node.agent.vpn.connection import VpnConnection

    connection = VpnConnection(engine, progress.message)
    if gateway:
        disconnect.remove_gateway(connection.book, engine.config, connection.world, progress.message)
    left = connection.remove_from_azure()
    engine.remove(COMPONENT, progress.warning)
    connection.reset_phase()
    return left


def refuse_vpn_in_use(engine: Engine) -> None:
    """A node that is to be behind the VPN would be lost without it."""
    state = node_state.read(engine.host, state_file(engine.config.paths.data_dir))
    if state.phase is Phase.NODE_JOINED and engine.config.azure.vpn.enabled:
        raise MachineError(
            "vpn-in-use",
            f"Node {state.node} reaches its cluster through this VPN, and would be lost without it.",
            "End the node: `aks-flex-node unbootstrap`, which takes the VPN away, too. Or let it reach the cluster "
            "in another way first: azure.vpn.enabled false, and `bootstrap`.",
        )


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
                    "identity-registration-failed",
                    f"The provider did not let this node in: {verdict.message}",
                    "Look at the resource: `aks-flex-rp node show`. Its azureAuth must name this node's identity.",
                    retryable=True,
                ) from None
        finally:
            provider.close()
        time.sleep(pause)
        pause = min(pause * 2, 15.0)
