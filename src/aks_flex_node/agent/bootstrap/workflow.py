"""Runs `bootstrap` and `agent`: lock, configuration, invariants, preflight, prerequisites, join, and the daemon's
service.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, preflight, self_update
from aks_flex_node.agent.aks_pool import pool_facts
from aks_flex_node.agent.bootstrap import management, pool_join, prerequisites
from aks_flex_node.agent.bootstrap.bootstrap_token import explain_used_token, token_renewal
from aks_flex_node.agent.bootstrap.join import NodeJoin, initialize
from aks_flex_node.agent.cluster import discovery, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api
from aks_flex_node.agent.cluster.readiness import LiveNodeReadiness
from aks_flex_node.agent.components import service
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS, SEQUENCE, managed_components
from aks_flex_node.agent.config import config_store, loader, resolved
from aks_flex_node.agent.context import ConfigSelection, DaemonMode
from aks_flex_node.agent.first_contact import prover
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG, DAEMON_STATE
from aks_flex_node.agent.policy import JOIN_REFUSAL_HINT, read_policy, refuse_by_policy
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.program_stager import StoreProgramStager, artifact_sources
from aks_flex_node.agent.stored_config import ConfigVersions
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import ClusterError, ConfigError, FlexError, MachineError
from aks_flex_node.host.actions import ReloadUnits, Remove, WriteFile
from aks_flex_node.host.real import RealHost
from aks_flex_node.redaction import redact_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

MAX_REPORTED_LENGTH = 2000


def bootstrap_node(
    selection: ConfigSelection,
    progress: ProgressReporter,
    *,
    skip: Sequence[str] = (),
    components: Sequence[Component] | None = None,
    daemon_mode: DaemonMode | None = None,
) -> NodeConfig:
    """Checks the configuration and the machine, joins the cluster, and sets up the daemon."""
    start = time.monotonic()
    context.require_root()
    with exclusive():  # before reading anything: another process may be changing the stored configuration
        config_store.finish_interrupted(RealHost())
        config_store.restore_damaged(RealHost())
        selection = context.skip_enrolment(RealHost(), selection, progress)
        loaded, bundle = context.load_or_fetch_config(selection, progress)
        if bundle and selection.url and selection.url.is_enrolment:
            start = time.monotonic()  # the wait for an approval is no part of the join
        loaded, pool = pool_join.complete_from_pool(selection, loaded, progress)
        config = loaded.config
        if bundle or pool or comes_from_provider(loaded):
            policy, current = read_policy(RealHost()), context.applied_config()
            with reported_failure(config, selection.url):
                refuse_by_policy(policy, policy.violations(config, current), JOIN_REFUSAL_HINT)
        is_kept = bundle is not None and not (context.has_credentials(config) or context.applied_config())
        with keep_fetched_on_failure(lambda: context.make_engine(config), bundle if is_kept else None, selection.url):
            complete, found = prerequisites.discover_cluster(config, progress)
            loaded = replace(loaded, config=complete)
            managed = bool(complete.continuous_monitoring and daemon_mode and daemon_mode.runs_daemon)
            bound = bundle.key_audience if bundle else ""
            with discarded_key_on_refusal(bundle):
                engine = _checked_engine(loaded, progress, bound, managed=managed, fetched=selection.url is not None)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # continue when the terminal closes
            rebuild_ledger(engine)
            with reported_failure(complete, selection.url):
                run_preflight(engine, progress, skip, components)
            if (components or SEQUENCE) is SEQUENCE:
                prerequisites.sign_in_operator(engine)
        initialize(engine, ProgressReporter())  # creates the log directory
        if found:
            discovery.store_facts(engine.host, found)
        if pool:
            pool_facts.write_facts(engine.host, pool)
        if bundle and selection.url:
            update_journal.supersede_journal(engine.host)
            save_fetched(engine.host, bundle, selection.url)  # the next run does not need the URL
        context.open_log_file(engine)
        with reported_failure(engine.config, selection.url), explain_used_token(engine):
            node, etag = _run_join(engine, components or SEQUENCE, loaded, progress)
        if node and not managed and comes_from_provider(loaded) and not etag:
            record_applied_config(engine, node.name, progress)
        engine.host.apply(WriteFile(APPLIED_CONFIG, config_store.applied_config_text(loaded.config).encode(), 0o600))
        if components is None:
            store_standalone_config(engine, loaded, daemon_mode, progress, etag)
        set_up_daemon(engine, loaded, daemon_mode, progress, managed=managed)
    _show_result(engine, node, time.monotonic() - start, progress)
    if daemon_mode is DaemonMode.SERVICE:
        progress.message(
            management.describe_service(
                engine.host, context.node_name(engine), follows=managed or bool(etag), fetched=bundle is not None
            )
        )
    return loaded.config


def _show_result(engine: Engine, node: ClusterNode | None, seconds: float, progress: ProgressReporter) -> None:
    what = f"Node {node.name} is Ready" if node else f"Done, {pluralize(len(engine.applied_actions), 'change')}"
    progress.message(f"{what} ({seconds:.1f} s).")
    if node and (source := pool_join.describe_pool_node(engine.host, engine.config)):
        progress.message(source)


@contextmanager
def keep_fetched_on_failure(
    make_engine: Callable[[], Engine], bundle: ConfigBundle | None, url: ConfigUrl | None
) -> Iterator[None]:
    """Stores a fetched configuration if a step before the join fails, because its URL may be valid only once. The
    next run continues without the URL.
    """
    try:
        yield
    except FlexError as error:
        if bundle is None or url is None or isinstance(error, ConfigError):
            raise
        with suppress(FlexError, OSError):  # the disk may be the problem that was found
            engine = make_engine()
            initialize(engine, ProgressReporter())
            save_fetched(engine.host, bundle, url)
            hint = error.hint.replace("Nothing was changed.", "Nothing was installed.")
            # A rejected token came with the URL, so the stored configuration does not help.
            refused = any(line.startswith("token: ") for line in error.message.splitlines())
            stored = "" if refused else " The configuration is stored: run the command again without the URL."
            error.hint = f"{hint}{stored}"
        raise


@contextmanager
def discarded_key_on_refusal(bundle: ConfigBundle | None, host: Host | None = None) -> Iterator[None]:
    """Forgets the key that was made for a configuration which is refused, for example that of another node."""
    try:
        yield
    except FlexError:
        if bundle:
            NodeKeyStore(host or RealHost()).discard(bundle.key)
        raise


def save_fetched(host: Host, bundle: ConfigBundle, url: ConfigUrl) -> None:
    """Stores a fetched configuration, and first whether the provider has bound the key of this machine."""
    NodeKeyStore(host).bind(bundle.key_audience, bundle.key)
    config_store.save_fetched(host, bundle, url)


def _checked_engine(
    loaded: LoadedConfig, progress: ProgressReporter, bound: str, *, managed: bool, fetched: bool
) -> Engine:
    """Returns an engine after checking that the configuration fits this machine. `bound` is the audience of the node
    key, if the provider has bound it in this run.
    """
    if not context.has_credentials(loaded.config):
        loader.check_join(loaded.config)
    for warning in loaded.warnings:
        progress.warning(warning)
    engine = context.make_engine(loaded.config)
    if managed:
        known = NodeKeyStore(engine.host).read()
        is_bound = bool(bound) or (known is not None and known.is_bound)
        management.check_management(loaded.config, context.node_name(engine), is_key_bound=is_bound)
        management.refuse_temporary_vpn(loaded)
    if fetched:
        refuse_other_node(engine, context.applied_config())
    refuse_renamed_node(engine)
    return engine


def _run_join(
    engine: Engine, components: Sequence[Component], loaded: LoadedConfig, progress: ProgressReporter
) -> tuple[ClusterNode | None, str]:
    """Joins the cluster; returns the Node and, for a node that follows an AKS pool, the eTag of its Machine."""
    stager = StoreProgramStager(engine.config)
    engine.stager = stager
    name = engine.machine.node_name(engine.config)
    try:
        with (
            progress.show_transfers(stager.transfers),
            pool_join.machine_registration(engine, progress.note) as registration,
        ):
            readiness = LiveNodeReadiness(engine.host, engine.config, name, progress.note)
            stages = prerequisites.prerequisite_stages(engine, progress.note) if components is SEQUENCE else []
            reread = lambda: context.read_known_machine(engine.host, engine.config)  # noqa: E731
            announce = registration.start if registration else prerequisites.provider_announcement(engine, loaded)
            renew = token_renewal(engine, name, progress.note)
            node = NodeJoin(engine, readiness, progress, stages, reread, announce, renew).run(components)
            return node, registration.finish() if registration and node else ""
    finally:
        stager.close()


@contextmanager
def reported_failure(config: NodeConfig, url: ConfigUrl | None) -> Iterator[None]:
    """Tells the provider why a join with its URL failed, so that the operator sees it there, too."""
    try:
        yield
    except FlexError as error:
        if url:
            from aks_flex_node.agent.config.remote import report_join_failure

            message = redact_output(" ".join(error.message.split()), queries=True)[:MAX_REPORTED_LENGTH]
            key = NodeKeyStore(RealHost()).read() if url.is_enrolment else None
            prove = prover(key.private_key) if key else None
            report_join_failure(url, artifact_sources(config), message, prove)
        raise


def refuse_renamed_node(engine: Engine) -> None:
    """Raises MachineError if the node's name has changed, because its certificate is valid for one name only."""
    known = node_state.load(engine.host, engine.config).node
    name = engine.machine.node_name(engine.config)
    if known and known != name and context.has_credentials(engine.config):
        raise MachineError(
            "node-name-changed",
            f"This machine joined as node {known}, but its name is now {name}.",
            f"Set `node.name` to {known}, or run `aks-flex-node unbootstrap` first.",
        )


def refuse_other_node(engine: Engine, applied: NodeConfig | None) -> None:
    """Raises MachineError if the fetched configuration is for another node or cluster than this node's."""
    known = node_state.load(engine.host, engine.config).node
    name = engine.machine.node_name(engine.config)
    here, there = ("/".join(resolved.target_cluster(each) or ()) if each else "" for each in (applied, engine.config))
    elsewhere = bool(here and there and here.lower() != there.lower())
    if context.has_credentials(engine.config) and (elsewhere or (known and known != name)):
        raise MachineError(
            "config-node-mismatch",
            f"This machine is node {known or name} of {here or 'its cluster'}, but the URL is for node {name} of "
            f"{there or 'a cluster'}. Nothing was changed.",
            "Use the URL of this node. Or run `aks-flex-node unbootstrap` first, and use a new URL of the other.",
        )


def run_preflight(
    engine: Engine, progress: ProgressReporter, skip: Sequence[str], components: Sequence[Component] | None = None
) -> None:
    """Runs the preflight checks before any change; raises MachineError on errors and reports warnings."""
    if "all" in skip:
        return
    names = frozenset(component.name for component in components) if components else None
    context = preflight.build_context(engine.host, engine.config, engine.machine, engine.ledger, components=names)
    findings = preflight.run_checks(context, set(skip))
    wrong = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" and not engine.ledger.exists:  # only before the first join
            progress.warning(f"{finding.message} ({finding.check})")
    if wrong:
        lines = [f"{finding.check}: {finding.message} {finding.remedy}" for finding in wrong]
        raise MachineError(
            "preflight-failed",
            "\n".join([f"Preflight found {pluralize(len(wrong), 'problem')}:", *lines]),
            "Nothing was changed. Fix the problems, or skip a check with `--skip NAME`.",
        )


def record_applied_config(
    engine: Engine, node: str, progress: ProgressReporter, api: ApiClient | None = None
) -> None:
    """Writes the version of the applied configuration to the Node, where the provider reads it: no daemon reports."""
    version = self_update.config_version(engine.host)
    at = node_state.load(engine.host, engine.config).applied
    if not version:
        return
    try:
        nodes.annotate_applied_config(api or node_api(engine.config), node, version, at)
    except (ClusterError, ApiStatusError) as error:
        progress.note(f"the applied configuration version could not be written to the Node: {error}")


def store_standalone_config(
    engine: Engine,
    loaded: LoadedConfig,
    daemon_mode: DaemonMode | None,
    progress: ProgressReporter,
    etag: str = "",
) -> None:
    """Stores the configuration of this run for the daemon of a node that no provider manages. `etag` is the version
    of the settings of a node that follows an AKS pool.
    """
    if loaded.config.continuous_monitoring:
        return
    managed_before, runs_daemon = context.is_managed(), daemon_mode is not None and daemon_mode.runs_daemon
    if runs_daemon and managed_before:
        progress.warning(
            "The configuration does not enable continuous monitoring: the provider no longer manages this node."
        )
    if runs_daemon or (daemon_mode is None and has_daemon_service(engine) and not managed_before):
        version = etag or (ConfigVersions(engine.host).current if comes_from_provider(loaded) else "")
        in_pool = loaded.config.azure.target_agent_pool_name is not None
        text = loaded.text(_temporary_settings(loaded), without_token=in_pool)
        config_store.save_standalone(engine.host, text, version)


def comes_from_provider(loaded: LoadedConfig) -> bool:
    """Returns whether the configuration was fetched from a URL, by this run or before."""
    return loaded.file is None or loaded.file == Path(CURRENT_CONFIG)


def has_daemon_service(engine: Engine) -> bool:
    return managed_components(engine.ledger, engine.config) is not SEQUENCE


def _temporary_settings(loaded: LoadedConfig) -> str:
    """Returns the prefix of settings that are not stored. With Arc, the service principal belongs to the operator and
    may be meant for this run only."""
    return "azure.servicePrincipal." if identity_kind(loaded.config) == "arc" else "-"


def set_up_daemon(
    engine: Engine, loaded: LoadedConfig, daemon_mode: DaemonMode | None, progress: ProgressReporter, *, managed: bool
) -> None:
    """Stores the daemon's configuration and installs or removes its service."""
    if managed and not management.supports_management(management.stored_daemon_config()):
        config_store.save_local(engine.host, loaded.text(_temporary_settings(loaded)))
    if (managed or has_daemon_service(engine)) and (
        unexpected := management.ignored_settings_warning(loaded.config, management.stored_daemon_config())
    ):
        progress.warning(unexpected)
    if daemon_mode is DaemonMode.NONE and has_daemon_service(engine) and not context.is_managed():
        for component in reversed(AGENT_COMPONENTS):
            engine.remove(component, progress.warning)
        engine.host.apply(ReloadUnits())
        engine.host.apply(Remove(DAEMON_STATE))
    elif daemon_mode is DaemonMode.SERVICE:
        installed = self_update.install_service(engine)
        if not installed.is_done:
            progress.warning(installed.message)
    elif daemon_mode is None and has_daemon_service(engine):
        repair_service(engine)


def repair_service(engine: Engine) -> None:
    """Repairs the unit of the daemon. A service that a person has stopped stays stopped."""
    engine.kept_stopped = frozenset((service.UNIT_NAME,))
    engine.apply(service.COMPONENT)
