"""Runs `bootstrap` and `agent`: lock, configuration, invariants, preflight, prerequisites, join, and the daemon's
service.
"""

from __future__ import annotations

import signal
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, preflight, self_update
from aks_flex_node.agent.bootstrap import management, phases, prerequisites
from aks_flex_node.agent.bootstrap.bootstrap_token import token_renewal
from aks_flex_node.agent.bootstrap.join import NodeJoin, initialize
from aks_flex_node.agent.bootstrap.phases import ChosenPhases
from aks_flex_node.agent.bootstrap.sources.selection import select_source
from aks_flex_node.agent.cluster import discovery, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.cluster.readiness import NodeReadiness
from aks_flex_node.agent.components import service
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS, SEQUENCE, managed_components
from aks_flex_node.agent.config import config_store, loader
from aks_flex_node.agent.context import DaemonMode
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.paths import APPLIED_CONFIG, DAEMON_STATE
from aks_flex_node.agent.policy import JOIN_REFUSAL_HINT, read_policy, refuse_by_policy
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.agent.stored_config import ConfigVersions, store_machine_settings
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import ClusterError, MachineError
from aks_flex_node.host.actions import ReloadUnits, Remove, WriteFile
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.bootstrap.sources.source import JoinSource
    from aks_flex_node.agent.cluster.discovery import ClusterFacts
    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.context import ConfigSelection
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@dataclass
class Join:
    """A run of `bootstrap` or `agent`. Each phase uses what the phases before it have found."""

    host: Host
    source: JoinSource
    progress: ProgressReporter
    skipped_checks: Sequence[str] = ()
    chosen: ChosenPhases = field(default_factory=ChosenPhases)
    daemon_mode: DaemonMode | None = None  # None for `bootstrap`, which leaves the daemon as it is
    loaded: LoadedConfig = field(init=False)
    engine: Engine = field(init=False)
    facts: ClusterFacts | None = None  # read from Azure by this run
    node: ClusterNode | None = None
    etag: str = ""  # version of the settings of a node that follows an AKS pool

    @property
    def config(self) -> NodeConfig:
        return self.loaded.config

    @property
    def is_managed(self) -> bool:
        """Whether the daemon is to follow the provider."""
        return bool(self.config.continuous_monitoring and self.daemon_mode and self.daemon_mode.runs_daemon)

    def run(self, phase: JoinPhase, work: Callable[[], None]) -> None:
        step = self.progress.step(phase.name, phase.title, quiet=phase.quiet)
        with step, self.source.explain_failure(phase, self.config):
            work()

    def check_policy(self) -> None:
        """Refuses a configuration from another machine that the policy of this one forbids."""
        if self.source.decides_remotely:
            policy, current = read_policy(self.host), context.applied_config(self.host)
            refuse_by_policy(policy, policy.violations(self.config, current), JOIN_REFUSAL_HINT)

    def complete_from_cluster(self) -> None:
        config, self.facts = prerequisites.discover_cluster(self.config, self.progress)
        self.loaded = replace(self.loaded, config=config)

    def check_identity(self) -> None:
        """Checks that the configuration makes this machine the node that it is, and that its daemon can connect."""
        loader.check_join(self.config, is_node=has_kubelet_credential(self.host, self.config))
        for warning in self.loaded.warnings:
            self.progress.warning(warning)
        self.engine = context.make_engine(self.config, self.host)
        if self.is_managed:
            is_bound = self.source.has_bound_key or NodeKeyStore(self.host).has_bound_key
            management.check_management(self.config, context.node_name(self.engine), is_key_bound=is_bound)
            management.refuse_temporary_vpn(self.loaded)
        self.source.admit(self.engine)
        refuse_renamed_node(self.engine)

    def begin(self) -> None:
        """Rebuilds a lost ledger. From here on, the join continues when the terminal closes."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        rebuild_ledger(self.engine)

    def check_machine(self) -> None:
        """Runs the preflight checks."""
        components = None if self.chosen.is_complete else self.chosen.components
        run_preflight(self.engine, self.progress, self.skipped_checks, components)

    def sign_in(self) -> None:
        if self.chosen.prerequisites:
            prerequisites.sign_in_operator(self.engine)

    def store(self) -> None:
        """Makes the directories of the agent, and stores what the next run then need not fetch."""
        initialize(self.engine, ProgressReporter())
        if self.facts:
            discovery.FACTS_FILE.write(self.host, self.facts)
        self.source.persist(self.engine)
        context.open_log_file(self.engine)

    def install(self) -> None:
        """Runs the phases from the artifacts to the readiness of the Node."""
        engine, progress, stager = self.engine, self.progress, ProgramStager(self.engine.config)
        engine.stager = stager
        name = engine.machine.node_name(engine.config)
        stages = prerequisites.prerequisite_stages(engine, progress.note)
        try:
            with (
                progress.show_transfers(stager.transfers),
                self.source.register(engine, progress.note) as registration,
            ):
                self.node = NodeJoin(
                    engine,
                    NodeReadiness(engine.host, engine.config, name, progress.note),
                    progress,
                    [stage for stage in stages if stage.phase.name in self.chosen.prerequisites],
                    lambda: context.read_known_machine(engine.host, engine.config),
                    registration.start,
                    token_renewal(engine, name, progress.note),
                ).run(self.chosen.components)
                if self.node:
                    self.etag = registration.finish()
        finally:
            stager.close()

    def set_up_daemon(self) -> None:
        """Stores the configuration that was applied, and that the daemon keeps; installs or removes its service."""
        if self.node and not self.is_managed and self.source.comes_from_provider and not self.etag:
            record_applied_config(self.engine, self.node.name, self.progress)
        applied = config_store.applied_config_text(self.config).encode()
        self.host.apply(WriteFile(APPLIED_CONFIG, applied, 0o600))
        store_daemon_config(self)
        set_up_service(self)

    def describe_result(self, seconds: float) -> Iterator[str]:
        node, changes = self.node, len(self.engine.applied_actions)
        what = f"Node {node.name} is Ready" if node else f"Done, {pluralize(changes, 'change')}"
        yield f"{what} ({seconds:.1f} s)."
        if node and (text := self.source.describe_node(self.engine.config)):
            yield text
        if self.daemon_mode is DaemonMode.SERVICE:
            yield management.describe_service(
                self.host,
                context.node_name(self.engine),
                follows=self.is_managed or bool(self.etag),
                has_bound_key=self.source.has_bound_key,
            )


def bootstrap_node(
    selection: ConfigSelection,
    progress: ProgressReporter,
    *,
    skipped_checks: Sequence[str] = (),
    chosen: ChosenPhases | None = None,
    daemon_mode: DaemonMode | None = None,
) -> NodeConfig:
    """Checks the configuration and the machine, joins the cluster, and sets up the daemon."""
    context.require_root()
    host, chosen = RealHost(), chosen or ChosenPhases()
    with exclusive():  # before reading anything: another process may be changing the stored configuration
        config_store.finish_interrupted(host)
        config_store.restore_damaged(host)
        with progress.step(phases.CONFIGURATION.name, phases.CONFIGURATION.title):
            join = Join(host, select_source(host, selection, progress), progress, skipped_checks, chosen, daemon_mode)
            join.loaded = join.source.fetch(progress)
        start = time.monotonic()  # the wait for an approval is no part of the join
        join.run(phases.POLICY, join.check_policy)
        join.run(phases.CLUSTER, join.complete_from_cluster)
        join.run(phases.IDENTITY, join.check_identity)
        join.begin()
        if chosen.preflight:
            join.run(phases.PREFLIGHT, join.check_machine)
        join.run(phases.SIGN_IN, join.sign_in)
        join.run(phases.STORE, join.store)
        with join.source.explain_failure(phases.ARTIFACTS, join.config):  # and all phases up to the readiness
            join.install()
        join.run(phases.DAEMON, join.set_up_daemon)
    for text in join.describe_result(time.monotonic() - start):
        progress.message(text)
    return join.config


def refuse_renamed_node(engine: Engine) -> None:
    """Raises MachineError if the node's name has changed, because its certificate is valid for one name only."""
    known = node_state.load(engine.host, engine.config).node
    name = engine.machine.node_name(engine.config)
    if known and known != name and has_kubelet_credential(engine.host, engine.config):
        raise MachineError(
            "node-name-changed",
            f"This machine joined as node {known}, but its name is now {name}.",
            f"Set `node.name` to {known}, or run `aks-flex-node unbootstrap` first.",
        )


def run_preflight(
    engine: Engine, progress: ProgressReporter, skip: Sequence[str], components: Sequence[Component] | None = None
) -> None:
    """Runs the preflight checks before any change; raises MachineError on errors and reports warnings."""
    names = frozenset(component.name for component in components) if components else None
    findings = preflight.run_checks(preflight.build_context(engine, names), set(skip))
    wrong = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" and not engine.ledger.exists:  # only before the first join
            progress.warning(f"{finding.message} ({finding.check})")
    if wrong:
        lines = [f"{finding.check}: {finding.message} {finding.remedy}" for finding in wrong]
        raise MachineError(
            "preflight-failed",
            "\n".join([f"Preflight found {pluralize(len(wrong), 'problem')}:", *lines]),
            "Nothing was changed. Fix the problems, or skip a check with `--skip NAME`, or all of them with "
            "`--skip-phase preflight`.",
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


def store_daemon_config(join: Join) -> None:
    """Stores the configuration of this run for the daemon. Of a managed node, only the settings of the machine."""
    if join.config.continuous_monitoring:
        store_machine_settings(join.host, join.loaded.settings)
        return
    was_managed = context.is_managed()
    if join.daemon_mode is None:
        keeps = join.chosen.is_complete and has_daemon_service(join.engine) and not was_managed
    else:
        keeps = join.daemon_mode.runs_daemon
    if not keeps:
        return
    if was_managed:
        join.progress.warning(
            "The configuration does not enable continuous monitoring: the provider no longer manages this node."
        )
    version = join.etag or (ConfigVersions(join.host).current if join.source.comes_from_provider else "")
    in_pool = join.config.azure.target_agent_pool_name is not None
    text = join.loaded.text(_temporary_settings(join.loaded), without_token=in_pool)
    config_store.save_standalone(join.host, text, version)


def has_daemon_service(engine: Engine) -> bool:
    return managed_components(engine.ledger, engine.config) is not SEQUENCE


def _temporary_settings(loaded: LoadedConfig) -> str:
    """Returns the prefix of settings that are not stored. With Arc, the service principal belongs to the operator and
    may be meant for this run only."""
    return "azure.servicePrincipal." if identity_kind(loaded.config) == "arc" else "-"


def set_up_service(join: Join) -> None:
    """Stores the daemon's configuration and installs or removes its service."""
    engine, loaded, mode, warn = join.engine, join.loaded, join.daemon_mode, join.progress.warning
    if join.is_managed and not management.supports_management(management.stored_daemon_config()):
        config_store.save_local(engine.host, loaded.text(_temporary_settings(loaded)))
    if (join.is_managed or has_daemon_service(engine)) and (
        unexpected := management.ignored_settings_warning(loaded.config, management.stored_daemon_config())
    ):
        warn(unexpected)
    if mode is DaemonMode.NONE and has_daemon_service(engine) and not context.is_managed():
        for component in reversed(AGENT_COMPONENTS):
            engine.remove(component, warn)
        engine.host.apply(ReloadUnits())
        engine.host.apply(Remove(DAEMON_STATE))
    elif mode is DaemonMode.SERVICE:
        installed = self_update.install_service(engine)
        if not installed.is_done:
            warn(installed.message)
    elif mode is None and has_daemon_service(engine):
        repair_service(engine)


def repair_service(engine: Engine) -> None:
    """Repairs the unit of the daemon. A service that a person has stopped stays stopped."""
    engine.kept_stopped = frozenset((service.UNIT_NAME,))
    engine.apply(service.COMPONENT)
