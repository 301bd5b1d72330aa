"""The flow behind `bootstrap` and `agent`: lock, configuration, invariants, preflight, prerequisites, join, and the
daemon's service.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, self_update
from aks_flex_node.agent.bootstrap import prerequisites
from aks_flex_node.agent.bootstrap.join import NodeJoin, initialize
from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.cluster.readiness import LiveNodeReadiness
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.config import config_store, loader, resolved
from aks_flex_node.agent.context import DaemonMode
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.paths import APPLIED_CONFIG, CONFIG_URL_DIGEST, CURRENT_CONFIG, state_file
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.program_stager import StoreProgramStager
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import ClusterError, ConfigError, MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.context import ConfigSelection
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine


def bootstrap_node(
    selection: ConfigSelection,
    progress: ProgressReporter,
    *,
    skip: Sequence[str] = (),
    components: Sequence[Component] | None = None,
    stays: DaemonMode | None = None,
) -> NodeConfig:
    """Check the configuration and the machine, then do it."""
    start = time.monotonic()
    context.require_root()
    with exclusive():  # from the first look on: what is kept here may be about to change
        config_store.finish_interrupted(RealHost())
        loaded, bundle = context.load_or_fetch_config(selection)
        complete, found = prerequisites.discover_cluster(loaded.config, progress)
        loaded = replace(loaded, config=complete)
        follows = loaded.config.continuous_monitoring and stays in {DaemonMode.FOREGROUND, DaemonMode.SERVICE}
        engine = _checked_engine(loaded, progress, follows=follows, fetched=selection.url is not None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away does not stop us half-way
        rebuild_ledger(engine)
        run_preflight(engine, progress, skip, components)
        initialize(engine, ProgressReporter())  # the log is in a directory of its own
        if found:
            discovery.store_facts(engine.host, found)
        if bundle and selection.url:
            update_journal.supersede_journal(engine.host)
            config_store.save_fetched(engine.host, bundle, selection.url)  # from here on, the next run needs no URL
        context.open_log_file(engine)
        with _explain_refused_token(engine):
            node = _run_join(engine, components or SEQUENCE, loaded, progress)
        engine.host.apply(WriteFile(APPLIED_CONFIG, config_store.applied_config_text(loaded.config).encode(), 0o600))
        set_up_daemon(engine, loaded, stays, progress, follows=follows)
    took = time.monotonic() - start
    what = f"Node {node.name} is Ready" if node else f"Done, {pluralize(len(engine.applied_actions), 'change')}"
    progress.message(f"{what} ({took:.1f} s).")
    if follows and stays is DaemonMode.SERVICE:
        progress.message(
            "aks-flex-node.service follows its configuration from now on; `aks-flex-node status` shows it."
        )
    return loaded.config


def _checked_engine(loaded: LoadedConfig, progress: ProgressReporter, *, follows: bool, fetched: bool) -> Engine:
    """An engine for a configuration that this machine can take."""
    if not context.has_credentials(loaded.config):
        loader.check_join(loaded.config)
    for warning in loaded.warnings:
        progress.warning(warning)
    engine = context.make_engine(loaded.config)
    if follows:
        check_management(loaded.config, context.node_name(engine))
        refuse_temporary_vpn(loaded)
    if fetched:
        refuse_other_node(engine, context.applied_config())
    refuse_renamed_node(engine)
    return engine


def _run_join(
    engine: Engine, components: Sequence[Component], loaded: LoadedConfig, progress: ProgressReporter
) -> ClusterNode | None:
    stager = StoreProgramStager(engine.config)
    engine.stager = stager
    name = engine.machine.node_name(engine.config)
    try:
        with progress.show_transfers(stager.transfers):
            readiness = LiveNodeReadiness(engine.host, engine.config, name, progress.note)
            stages = prerequisites.prerequisite_stages(engine, progress.note) if components is SEQUENCE else []
            reread = lambda: context.read_known_machine(engine.host, engine.config)  # noqa: E731
            announce = prerequisites.provider_announcement(engine, loaded)
            return NodeJoin(engine, readiness, progress, stages, reread, announce).run(components)
    finally:
        stager.close()


@contextmanager
def _explain_refused_token(engine: Engine) -> Iterator[None]:
    """A token that came by a URL is for one attempt; whoever made another one in vain is told how to get the next."""
    try:
        yield
    except ClusterError as error:
        if error.name != "bootstrap-token-rejected" or engine.host.stat(CONFIG_URL_DIGEST) is None:
            raise
        name = engine.machine.node_name(engine.config)
        raise ClusterError(
            "bootstrap-token-rejected",
            "The API server does not accept the bootstrap token: it came with the URL, and both are good for one "
            "attempt to join, which was made, or for a day.",
            f"Make new ones where the provider runs: `aks-flex-rp node join-command --name {name}`. It prints the "
            "line to run here; what is installed already stays.",
        ) from error


def refuse_temporary_vpn(loaded: LoadedConfig) -> None:
    """A node that is followed becomes what its resource says; without the tunnel it would be lost."""
    origin = loaded.origins.get("azure.vpn.enabled", "")
    if loaded.config.azure.vpn.enabled and origin.startswith(("flag", "environment")):
        raise ConfigError(
            "vpn-flags-not-supported",
            f"The VPN is asked for by {origin} alone. This node is to follow its resource, which would take it away.",
            "Say it in the resource: `aks-flex-rp node update --vpn`, and join with its new URL.",
        )


def refuse_renamed_node(engine: Engine) -> None:
    """A node's certificate is for one name. Under another it would be a stranger to its own Node."""
    known = node_state.read(engine.host, state_file(engine.config.paths.data_dir)).node
    name = engine.machine.node_name(engine.config)
    if known and known != name and context.has_credentials(engine.config):
        raise MachineError(
            "node-name-changed",
            f"This machine joined as {known}, and would now be called {name}.",
            f"Set node.name to {known}, or take the node apart first: `aks-flex-node unbootstrap`.",
        )


def refuse_other_node(engine: Engine, applied: NodeConfig | None) -> None:
    """What was fetched must be for the node that this machine already is: of this name, in this cluster."""
    known = node_state.read(engine.host, state_file(engine.config.paths.data_dir)).node
    name = engine.machine.node_name(engine.config)
    here, there = (cluster_path(each) if each else "" for each in (applied, engine.config))
    elsewhere = bool(here and there and here.lower() != there.lower())
    if context.has_credentials(engine.config) and (elsewhere or (known and known != name)):
        raise MachineError(
            "config-node-mismatch",
            f"This machine is node {known or name} of {here or 'its cluster'}, and the URL is for node {name} of "
            f"{there or 'a cluster'}. Nothing was changed.",
            "Use the URL of this node, or take it apart first: `aks-flex-node unbootstrap`.",
        )


def cluster_path(config: NodeConfig) -> str:
    """Subscription, resource group and name; nothing when the configuration does not name its cluster in full."""
    return "/".join(resolved.target_cluster(config) or ())


def run_preflight(
    engine: Engine, progress: ProgressReporter, skip: Sequence[str], components: Sequence[Component] | None = None
) -> None:
    """Refuse before anything is changed what could not end well."""
    if "all" in skip:
        return
    from aks_flex_node.agent import preflight

    names = frozenset(component.name for component in components) if components else None
    context = preflight.build_context(engine.host, engine.config, engine.machine, engine.ledger, components=names)
    findings = preflight.run_checks(context, set(skip))
    wrong = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" and not engine.ledger.exists:  # said before the first join, and not for ever
            progress.warning(f"{finding.message} ({finding.check})")
    if wrong:
        lines = [f"{finding.check}: {finding.message} {finding.remedy}" for finding in wrong]
        raise MachineError(
            "preflight-failed",
            "\n".join([f"This machine is not ready to become a node ({pluralize(len(wrong), 'problem')}):", *lines]),
            "Nothing was changed. To go on in spite of a finding: --skip NAME.",
        )


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
    if stays is DaemonMode.SERVICE:
        installed = self_update.install_service(engine)
        if not installed.is_done:
            progress.warning(installed.message)


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
    if stays is DaemonMode.SERVICE and not config.continuous_monitoring:
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
