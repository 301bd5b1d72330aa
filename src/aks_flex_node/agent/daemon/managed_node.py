"""This machine under the configuration in effect: health, drift, scheduler input, reports and state of the daemon.
Opened again after each change of the configuration.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import context, stored_config
from aks_flex_node.agent.cluster import node_health
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.components import vpn as tunnel
from aks_flex_node.agent.components.agent import CURRENT_CONFIG, DAEMON_STATE, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.config_store import JOURNAL_FILE
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.daemon import conditions, daemon_state, scheduler
from aks_flex_node.agent.daemon.scheduler import REPAIR, SchedulerInput
from aks_flex_node.agent.drift import conflicts
from aks_flex_node.agent.drift.detection import detect_drift
from aks_flex_node.agent.drift.file_watcher import FileWatcher
from aks_flex_node.agent.jobs import self_update
from aks_flex_node.agent.jobs.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.update import admission, update_journal
from aks_flex_node.agent.jobs.update.update_journal import UpdateStage
from aks_flex_node.agent.machine import running_program
from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.lock import is_held
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.agent.vpn import local_state as vpn
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.config.models import MaintenanceWindow, NodeConfig
    from aks_flex_node.agent.daemon.daemon_state import DaemonState
    from aks_flex_node.agent.daemon.scheduler import JobHistory
    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.provider.poll_result import PollResult
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host


@dataclass
class ManagedNode:
    engine: Engine
    api: ApiClient
    node: str
    provider: ProviderClient
    now: Callable[[], float] = time.time
    health: NodeHealth = field(default_factory=NodeHealth)
    drift: tuple[Drift, ...] = ()
    _conflicts: conflicts.Conflicts = field(default_factory=conflicts.Conflicts)
    _saved_state: DaemonState | None = None
    _written_metrics: bytes = b""
    _last_write_error: str = ""
    _agent_confirmed: bool = False
    _vpn_due: bool = False  # the tunnel's certificate is about to end, or another tunnel is meant
    _file_watcher: FileWatcher | None = None

    @property
    def host(self) -> Host:
        return self.engine.host

    @property
    def config(self) -> NodeConfig:
        return self.engine.config

    @property
    def program(self) -> str:
        """The agent that runs: works are done by the same version."""
        return running_program() or self.engine.machine.program

    @property
    def state_file(self) -> str:
        return DAEMON_STATE

    @property
    def current_version(self) -> str:
        """The version in effect."""
        return stored_config.parse_version(self._text(CURRENT_CONFIG))

    @property
    def is_unbootstrapped(self) -> bool:
        """Whether this is no node any more: nothing is there to be followed, and nothing to be written down."""
        return self.host.look(CURRENT_CONFIG) is None

    @property
    def next_version(self) -> str:
        """The version that is wanted and not in effect."""
        return stored_config.parse_version(self._text(NEXT_CONFIG))

    def newest_version(self) -> str:
        return self.next_version or self.current_version

    def log_event(self, event: str, message: str, level: str = "info", **fields: Any) -> None:
        self.engine.events.emit(event, message, level, **fields)

    def watch(self, touched: Callable[[frozenset[str]], None]) -> None:
        """Look at files as they change, from now on."""
        self._file_watcher = FileWatcher(self.engine, touched)
        self._file_watcher.start()

    def close(self) -> None:
        if self._file_watcher:
            self._file_watcher.close()
        self.api.close()
        self.provider.close()

    def refresh_health(self) -> None:
        self.health = node_health.check_node_health(self.host, self.config, self.node, self.api)

    def detect_drift(self) -> tuple[Drift, ...]:
        """Compare all of the machine with its configuration; what was not known to differ before."""
        if is_held() or self._is_update_in_progress():
            return ()  # what is seen now is half of something
        self.engine.ledger = Ledger(self.host, self.engine.ledger.places)
        self._refresh_vpn()
        known = {(one.subject, one.description) for one in self.drift}
        self.drift = detect_drift(self.engine, self_update.compared_components(self.engine))
        return tuple(one for one in self.drift if (one.subject, one.description) not in known)

    def _refresh_vpn(self) -> None:
        """Its certificate may be about to end, the configuration may mean another one; and a gateway may give this
        machine another address."""
        due = vpn.is_renewal_due(self.host, self.config, self.now())
        self._vpn_due = due or vpn.is_settings_changed(self.host, self.config)
        self.engine.machine = vpn.with_stable_address(self.host, self.config, self.engine.machine)

    def scheduler_input(self, *, deleted: bool, lost: bool) -> SchedulerInput:
        wanted = self._desired_config()
        policy = wanted.update_policy
        phase = node_state.read(self.host, f"{self.config.paths.data_dir}/state.json").phase
        return SchedulerInput(
            deleted=deleted,
            unbootstrapping=phase == Phase.RESETTING.value,
            may_unbootstrap=self.config.agent.unbootstrap_on_delete,
            next_version=self.next_version,
            unfinished=self.has_unfinished_update(),
            window_open=_is_window_open(policy.maintenance_window, self.now()),
            credentials_lost=lost,
            drifted=bool(self._repairable_subjects()),
            repair_enabled=self.config.drift_policy == "repair",
            paused=policy.paused,
            vpn_due=self._vpn_due,
        )

    def job_arguments(self, kind: str) -> tuple[str, ...]:
        """What a work has to be told."""
        if kind != REPAIR:
            return ()
        subjects = self._repairable_subjects()
        self._conflicts = self._conflicts.for_configuration(self.current_version).with_repairs(subjects, self.now())
        # What is given up with this very repair is repaired once more, and left alone from then on.
        return tuple(f"--leave-alone={each}" for each in sorted(self._ignored_subjects() - subjects))

    def _repairable_subjects(self) -> set[str]:
        """What a repair is to put right."""
        found = [one for one in self.drift if not (one.foreign or self._is_kept_vpn(one))]
        return {one.subject for one in found} - self._ignored_subjects()

    def _is_kept_vpn(self, one: Drift) -> bool:
        """Whether a repair leaves it as it is, because it may be the way to the cluster."""
        return one.component == tunnel.COMPONENT.name and not self.config.azure.vpn.enabled

    def report(self, known: DaemonState, memory: JobHistory, working: str) -> dict[str, Any]:
        fought = tuple(sorted(self._ignored_subjects() & {one.subject for one in self.drift}))
        situation = conditions.ReportInput(
            known,
            self.health,
            self.current_version,
            self.next_version,
            memory.results.get(scheduler.UPDATE),
            self._failed_update(),
            working,
            fought,
            self._agent_failure(memory.results.get(scheduler.UPDATE)),
            self._vpn_failure(memory.results.get(scheduler.CONNECT)),
        )
        told = conditions.build_report(situation)
        if file := self.config.agent.metrics_file:
            self._write_metrics(file, conditions.render_metrics(known, self.health, told))
        return told

    def restore(self, known: DaemonState) -> None:
        """Take up what an earlier life knew."""
        self._saved_state, self._conflicts = (
            known,
            conflicts.parse_conflicts(known.fights).for_configuration(self.current_version),
        )

    def save(self, known: DaemonState) -> None:
        known = replace(known, fights=self._conflicts.as_document())
        if self._saved_state is None or not known.is_equivalent(self._saved_state):
            with self._tolerate_write_errors():
                daemon_state.write(self.host, DAEMON_STATE, known)
                self._saved_state = known

    def probe_provider(self, text: str) -> PollResult:
        """How the provider answers when it is asked the way that another configuration says."""
        config = load_text(text, NEXT_CONFIG, {}, {}).config
        tokens = ProviderTokens(self.provider.tokens.program, lambda: text)
        other = ProviderClient(provider_endpoint(config, self.node), config, tokens)
        try:
            return other.poll("", 0)
        finally:
            other.close()

    def confirm_agent_version(self) -> None:
        """Whoever got as far as to ask the provider is an agent that runs."""
        if not self._agent_confirmed:
            self._agent_confirmed = True
            self_update.confirm_trial(self.host, self.config)

    def _write_metrics(self, file: str, text: bytes) -> None:
        if text != self._written_metrics:
            with self._tolerate_write_errors():
                self.host.do(WriteFile(file, text, 0o644))
                self._written_metrics = text

    @contextlib.contextmanager
    def _tolerate_write_errors(self) -> Iterator[None]:
        """A full disk keeps nobody from following; it is said once."""
        try:
            yield
        except MachineError as error:
            if error.message != self._last_write_error:
                self._last_write_error = error.message
                self.log_event(error.name, error.message, "warning")

    def has_unfinished_update(self) -> bool:
        """Whether a work was stopped half-way, or the agent's own version is still to come."""
        left = any(self.host.look(path) is not None for path in (UPDATE_JOURNAL, JOURNAL_FILE))
        # One that stays in the foreground has no service of its own, and nobody brings it another version.
        return left or (
            managed_components(self.engine.ledger, self.config) is not SEQUENCE
            and self_update.is_due(self.host, self.config)
        )

    def _is_update_in_progress(self) -> bool:
        """Whether an update has begun to change the machine, and waits to be gone on with: then it is no drift that
        the machine is not as the configuration before wants it."""
        journal = update_journal.read_journal(self.host)
        return journal is not None and journal.stage is not UpdateStage.PREPARING

    def _agent_failure(self, outcome: JobResult | None) -> str:
        """Why the version of the agent that is wanted does not run: it did not work, or could not be had yet."""
        if known := self_update.failure_reason(self.host, self.config):
            return known
        late = (
            outcome is not None
            and outcome.result == JobStatus.FAILED.value
            and outcome.version == self.current_version
        )
        return outcome.message if outcome and late and self_update.is_due(self.host, self.config) else ""

    def _vpn_failure(self, outcome: JobResult | None) -> JobResult | None:
        return outcome if outcome and self._vpn_due and outcome.result == JobStatus.FAILED.value else None

    def _failed_update(self) -> JobResult | None:
        """The version that is wanted, if it was tried and did not work."""
        known = update_journal.read_failure(self.host)
        if known is None or known.version != self.next_version:
            return None
        reason, result = known.reason, JobStatus.ROLLED_BACK.value
        return JobResult(scheduler.UPDATE, result, reason, known.message, version=known.version, at=known.at)

    def _ignored_subjects(self) -> frozenset[str]:
        return self._conflicts.for_configuration(self.current_version).ignored_subjects(self.now())

    def _desired_config(self) -> NodeConfig:
        """What is wanted decides when it may come; what is in effect, when nothing else is wanted."""
        text = self._text(NEXT_CONFIG)
        try:
            return load_text(text, NEXT_CONFIG, {}, {}).config if text else self.config
        except ConfigError:
            return self.config

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")


def _is_window_open(window: MaintenanceWindow, now: float) -> bool:
    try:
        return admission.next_opening(window, datetime.fromtimestamp(now, timezone.utc)) is None
    except MachineError:
        return True  # whoever tries says what is wrong with it


def _next_config_text() -> str:
    """What is not in effect yet may have the secret that works when the old one has ended."""
    return Path(NEXT_CONFIG).read_text() if Path(NEXT_CONFIG).exists() else ""


def open_managed_node() -> ManagedNode:
    """This machine under the configuration that is in effect now."""
    config = loader.load(Path(CURRENT_CONFIG), {}, {}).config
    engine = context.make_engine(config)
    context.open_log_file(engine)
    node = context.node_name(engine)
    tokens = ProviderTokens(
        running_program() or engine.machine.program, lambda: Path(CURRENT_CONFIG).read_text(), _next_config_text
    )
    return ManagedNode(
        engine, node_api(engine.config), node, ProviderClient(provider_endpoint(config, node), config, tokens)
    )
