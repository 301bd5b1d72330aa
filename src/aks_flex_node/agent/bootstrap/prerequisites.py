"""Prerequisites of a join: cluster facts from Azure, Azure Arc registration, the VPN, and the announcement to the
provider. Also reverts them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.aks_pool import registration
from aks_flex_node.agent.arc.registration_state import ArcRecordStore
from aks_flex_node.agent.bootstrap import phases
from aks_flex_node.agent.bootstrap.join import PrerequisiteStage, initialize
from aks_flex_node.agent.bootstrap.sources.aks_pool import machine_cleanup
from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.config.resolved import kubelet_auth
from aks_flex_node.agent.identity import azure_sign_in
from aks_flex_node.agent.identity.cloud_endpoints import resource_manager
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.provider.provider_client import (
    ProviderClient,
    ProviderRequestError,
    provider_endpoint,
)
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import ARC_PHASES, VPN_PHASES, Phase
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_node.agent.cluster.discovery import ClusterFacts
    from aks_flex_node.agent.progress import NoteProgress
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

    AzureCleanup = tuple[
        str, str, Callable[[], list[str]]
    ]  # name, title, and a function that returns the remaining manual commands

MACHINE_CLEANUP = "machine"  # name of the cleanup of the node's Machine in an AKS pool


def discover_cluster(config: NodeConfig, progress: ProgressReporter) -> tuple[NodeConfig, ClusterFacts | None]:
    """Completes the configuration with facts of the cluster read from Azure; returns also the facts if they were read
    by this call. Changes nothing on the machine."""

    def read_facts() -> ClusterFacts:
        progress.message(f"Reading {discovery.cluster_id(config)} from Azure.")
        with azure_sign_in.open_arm(config, operator=True) as azure:
            return discovery.discover(config, azure)

    stored = discovery.FACTS_FILE.read(RealHost())
    return discovery.complete_from_azure(
        config, stored, read_facts, progress.message, joined=Path(APPLIED_CONFIG).exists()
    )


def sign_in_operator(engine: Engine) -> None:
    """Signs in as the operator before any change if Arc or the VPN needs it and the operator can be asked, because a
    question must not appear while steps run.
    """
    config = engine.config
    if not azure_sign_in.offers_device_sign_in() or config.azure.service_principal:
        return
    registers = config.azure.arc.enabled and not ArcRecordStore(engine.host, config).current.settled
    connects = config.azure.vpn.enabled and not has_kubelet_credential(engine.host, config)
    if registers or connects:
        azure_sign_in.sign_in(config, f"{resource_manager(config)}/.default", operator=True)


def prerequisite_stages(engine: Engine, note: NoteProgress) -> list[PrerequisiteStage]:
    config, found = engine.config, []
    if config.azure.arc.enabled:
        from aks_flex_node.agent.arc.registration import ArcRegistration

        found.append(PrerequisiteStage(phases.ARC, *ARC_PHASES, ArcRegistration(engine, note).run))
    if config.azure.vpn.enabled:
        from aks_flex_node.agent.vpn.connection import VpnConnection

        def connect() -> None:
            VpnConnection(engine, note).run()
            grant_vpn_renewal(engine, note)

        found.append(PrerequisiteStage(phases.VPN, *VPN_PHASES, connect))
    return found


def grant_vpn_renewal(engine: Engine, note: NoteProgress) -> None:
    """Assigns the roles for renewals on the VPN gateway to the machine's Arc identity, if the agent assigns roles.
    Runs after the VPN is connected, because the gateway may not exist before.
    """
    azure = engine.config.azure
    if not (azure.arc.enabled and azure.arc.auto_role_assignment and azure.vpn.enabled):
        return
    from aks_flex_node.agent.arc.registration import ArcRegistration
    from aks_flex_node.agent.vpn import local_state

    tunnel = local_state.VpnRecordStore(engine.host, engine.config).current
    if tunnel.gateway:
        ArcRegistration(engine, note).grant_gateway(tunnel.gateway, tunnel.network)


def register_with_arc(engine: Engine, note: NoteProgress) -> None:
    """Registers this machine with Azure Arc outside of a join."""
    from aks_flex_node.agent.arc.registration import ArcRegistration

    initialize(engine, ProgressReporter())
    with record_stage(engine, phases.ARC.name, ARC_PHASES, earlier=(Phase.NOT_STARTED,)):
        ArcRegistration(engine, note).run(verify_again=True)
        grant_vpn_renewal(engine, note)


def unregister_from_arc(engine: Engine, note: NoteProgress) -> list[str]:
    """Unregisters this machine from Azure Arc; returns commands that an Azure administrator must run."""
    from aks_flex_node.agent.arc.registration import ArcRegistration

    remaining = ArcRegistration(engine, note).unregister()
    _save_phase(engine, Phase.NOT_STARTED, ARC_PHASES)
    return remaining


def refuse_arc_in_use(config: NodeConfig) -> None:
    """Raises MachineError if the node authenticates with its Azure Arc identity and would lose access without it."""
    if azure_sign_in.identity_kind(config) == "arc" and (
        kubelet_auth(config) == "exec" or config.continuous_monitoring
    ):
        raise MachineError(
            "arc-in-use",
            "This node authenticates with its Azure Arc identity. Nothing was changed.",
            "Run `aks-flex-node unbootstrap`, which also unregisters the machine from Azure Arc, or configure "
            "another identity first.",
        )


@contextlib.contextmanager
def record_stage(
    engine: Engine, name: str, stage: tuple[Phase, Phase, Phase], *, earlier: Sequence[Phase]
) -> Iterator[None]:
    """Records the phases of a prerequisite outside of a join, unless the machine is already in a later phase."""
    started, completed, failed = stage
    replaced = (*earlier, *stage)
    _save_phase(engine, started, replaced)
    try:
        yield
    except FlexError as error:
        _save_phase(engine, failed, replaced, step=name, error=error.name, message=error.message)
        raise
    _save_phase(engine, completed, replaced)


def _save_phase(engine: Engine, phase: Phase, replaced: Sequence[Phase], **changes: str) -> None:
    state = node_state.load(engine.host, engine.config)
    if state.phase in replaced:
        node_state.save(engine.host, engine.config, state.with_phase(phase, **changes))


def connect_vpn(engine: Engine, note: NoteProgress, *, auto_provision: bool, adopt: bool, renew: bool) -> None:
    """Connects this machine to the cluster's network by VPN outside of a join."""
    from aks_flex_node.agent.vpn.connection import VpnConnection

    if not engine.config.azure.vpn.enabled:
        raise ConfigError(
            "vpn-not-enabled",
            "The VPN is not enabled in the configuration (`azure.vpn.enabled`), so the next join would remove it.",
            "Set `azure.vpn.enabled` to true.",
        )
    initialize(engine, ProgressReporter())
    context.open_log_file(engine)
    with record_stage(
        engine, phases.VPN.name, VPN_PHASES, earlier=(Phase.NOT_STARTED, Phase.NODE_FAILED, *ARC_PHASES)
    ):
        VpnConnection(engine, note, make=auto_provision, adopt=adopt, renew=renew).run()
    grant_vpn_renewal(engine, note)


def remove_vpn(engine: Engine, progress: ProgressReporter, *, gateway: bool) -> list[str]:
    """Removes the VPN from this machine and its certificate from the gateway; returns remaining manual commands."""
    from aks_flex_node.agent.components.vpn import COMPONENT
    from aks_flex_node.agent.vpn.connection import VpnConnection

    connection = VpnConnection(engine, progress.message)
    if gateway:
        connection.remove_gateway()
    remaining = connection.remove_from_azure()
    engine.remove(COMPONENT, progress.warning)
    _save_phase(engine, Phase.NOT_STARTED, VPN_PHASES)
    return remaining


def refuse_vpn_in_use(engine: Engine) -> None:
    """Raises MachineError if the node needs the VPN to reach its cluster."""
    state = node_state.load(engine.host, engine.config)
    if state.phase is Phase.NODE_JOINED and engine.config.azure.vpn.enabled:
        raise MachineError(
            "vpn-in-use",
            f"Node {state.node} reaches its cluster through this VPN.",
            "Run `aks-flex-node unbootstrap`, which also removes the VPN. If the cluster is reachable without the "
            "VPN, set `azure.vpn.enabled` to false and run `aks-flex-node bootstrap`.",
        )


def azure_cleanups(engine: Engine, note: NoteProgress) -> list[AzureCleanup]:
    """Returns the cleanup steps for the Azure resources of this machine. They use the stored records, because the
    configuration may have changed since."""
    from aks_flex_node.agent.arc.registration import ArcRegistration
    from aks_flex_node.agent.vpn.connection import VpnConnection

    machine = machine_cleanup(engine, note)
    return [
        *([(MACHINE_CLEANUP, "delete the Machine from its AKS pool", machine)] if machine else []),
        ("vpn", "remove this machine from the VPN gateway", VpnConnection(engine, note).remove_from_azure),
        ("arc", "unregister from Azure Arc", ArcRegistration(engine, note).unregister),
    ]


def remaining_report(engine: Engine, note: NoteProgress) -> Callable[[list[str]], list[str]] | None:
    """Returns a function that reports to the provider what is left in Azure, and returns what the provider removed.

    None if this machine has no Arc identity and provider. The token is requested now, because the cleanup ends the
    machine's identity.
    """
    config = engine.config
    if not (config.azure.arc.enabled and config.provider.url and Path(CURRENT_CONFIG).exists()):
        return None
    tokens = ProviderTokens(engine.machine.program, lambda: Path(CURRENT_CONFIG).read_text())
    try:
        provider = ProviderClient(provider_endpoint(config, context.node_name(engine)), config, tokens)
        provider.sign_in()
    except (ProviderRequestError, ConfigError) as error:
        note(f"the provider cannot be told what is left in Azure: {error}")
        return None

    def report(remaining: list[str]) -> list[str]:
        try:
            answer = provider.post_action("reportStatus", {"remainingResources": remaining})
        except ProviderRequestError as error:
            note(f"the provider was not told what is left in Azure: {error.result.message}")
            return []
        finally:
            provider.close()
        return [str(each) for each in answer.get("removedResources") or ()]

    return report


def describe_azure_cleanup(host: Host, config: NodeConfig) -> list[str]:
    """Describes what `azure_cleanups` would do, from the stored records."""
    from aks_flex_node.agent.vpn import local_state as vpn

    arc, tunnel = ArcRecordStore(host, config).current, vpn.VpnRecordStore(host, config).current
    machine = registration.MACHINE_FILE.read(host)
    gateways = [*([tunnel.gateway] if tunnel.roots else []), *(gateway for gateway, _ in tunnel.former)]
    found = [f"delete Machine {machine.name} from {machine.pool}"] if machine else []
    found += [f"remove this machine's certificate from {each}" for each in dict.fromkeys(gateways)]
    found += [f"delete the role assignment {each}" for each in arc.assignments]
    found += [f"unregister {arc.machine} from Azure Arc"] if arc.connected else []
    return [*found, *(["remove azcmagent, its users and its directories"] if arc.installed else [])]
