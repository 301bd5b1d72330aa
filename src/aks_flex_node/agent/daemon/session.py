"""A session of the daemon under one configuration: node, provider connection, drift monitor and state.

The whole session is replaced when the configuration may have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from aks_flex_node.agent import self_update, staging_config
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.daemon import conditions
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.daemon.daemon_state import DaemonState, StateStore
from aks_flex_node.agent.daemon.drift_monitor import Conflicts, DriftMonitor
from aks_flex_node.agent.daemon.lifecycle import Leaving, Lifecycle, NodeChanged, SourceAnswered
from aks_flex_node.agent.daemon.poller import PollBackoff, Poller
from aks_flex_node.agent.daemon.status_reporter import StatusReporter, report_input
from aks_flex_node.agent.jobs.registry import SchedulerInput
from aks_flex_node.agent.paths import CONFIG_JOURNAL, CURRENT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.agent.policy import UNBOOTSTRAP, read_policy
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, PollResult, ProviderState
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.api.maintenance_window import next_opening
from aks_flex_node.errors import MachineError
from aks_flex_node.lean_dataclass import dataclass, frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.node_watch import NodeWatch
    from aks_flex_node.agent.config_sources.source import PollSchedule
    from aks_flex_node.agent.daemon.scheduler import JobHistory
    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.job_records.job_result import JobKind, JobResult
    from aks_flex_node.agent.managed_node import ManagedNode
    from aks_flex_node.settings.models import MaintenanceWindow


SETTLE_SECONDS = 0.5  # collects changes of several files before a check


@frozen
class PollEvent:
    result: PollResult
    credentials_problem: str | None  # why new credentials are not in use; None if unchanged


@frozen
class FilesChanged:
    paths: frozenset[str]


@frozen
class StopRequest:
    pass


ControllerEvent: TypeAlias = "PollEvent | FilesChanged | NodeChanged | JobResult | StopRequest"


@frozen
class SourceConnection:
    """The threads that communicate with the config source: configuration in, status out."""

    receiver: ConfigReceiver
    poller: Poller
    reporter: StatusReporter | None  # None for a source that accepts no reports

    def start(self) -> None:
        self.poller.start()
        if self.reporter:
            self.reporter.start()

    def close(self) -> None:
        self.receiver.close()
        self.poller.stop()
        if self.reporter:
            self.reporter.stop()


@dataclass
class CheckTimes:
    due: float = 0.0
    earliest: float = 0.0  # rate limit when files change

    def hasten(self, now: float) -> None:
        """After changes of files, of which several are collected."""
        self.due = min(self.due, max(now + SETTLE_SECONDS, self.earliest))


@dataclass
class Session:
    node: ManagedNode
    drift: DriftMonitor
    connection: SourceConnection | None  # None for a standalone node
    store: StateStore
    state: DaemonState
    on_event: Callable[[ControllerEvent], None]
    config_digest: bytes  # of the configuration for which the session was opened
    lifecycle: Lifecycle
    health_check: CheckTimes = field(default_factory=CheckTimes)
    drift_check: CheckTimes = field(default_factory=CheckTimes)
    has_operation: bool = False  # a MachineOperation in the cluster is for this machine
    _agent_confirmed: bool = False
    _watch: NodeWatch | None = None

    def start(self) -> None:
        if self.connection:
            self.connection.start()
            self._watch = self.node.watch_node(lambda seen: self.on_event(NodeChanged(not seen.uid)))
        self.drift.watch(lambda paths: self.on_event(FilesChanged(paths)))

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        if self._watch:
            self._watch.stop()
        self.drift.close()
        self.node.close()

    @property
    def is_stuck(self) -> bool:
        return self.connection is not None and self.connection.poller.is_stuck

    @property
    def is_outdated(self) -> bool:
        """Whether another command has replaced the configuration for which this session was opened."""
        return digest_config(self.node) != self.config_digest

    def collect_facts(self) -> SchedulerInput:
        """Collects the facts by which a job is selected, except those of the lifecycle. The policy of the machine is
        read only for a node that must leave.
        """
        node, config, versions = self.node, self.node.config, self.node.versions
        policy = versions.desired_config(config).update_policy  # the policy of the pending configuration applies
        forbids = self.lifecycle.must_leave and read_policy(node.host).forbids(UNBOOTSTRAP)
        return SchedulerInput(
            unbootstrapping=node_state.load(node.host, config).phase is Phase.RESETTING,
            may_unbootstrap=config.agent.unbootstrap_on_delete,
            unbootstrap_forbidden=bool(forbids),
            next_version=versions.next if self.connection else "",
            unfinished=self.has_unfinished_update,
            window_open=_is_window_open(policy.maintenance_window, node.now()),
            drifted=bool(self.drift.repairable_subjects),
            repair_enabled=config.drift_policy == "repair",
            paused=policy.paused,
            vpn_due=self.drift.vpn_due,
            operation_pending=self.has_operation,
            staging=staging_config.read_status(node.host, config).pending if self.connection else "",
        )

    @property
    def has_unfinished_update(self) -> bool:
        """Whether an update was interrupted, or a self-update is pending."""
        node = self.node
        if any(node.host.stat(path) is not None for path in (UPDATE_JOURNAL, CONFIG_JOURNAL)):
            return True
        # A daemon in the foreground has no service and is not updated.
        has_service = managed_components(node.engine.ledger, node.config) is not SEQUENCE
        return has_service and self_update.is_due(node.host, node.config)

    def is_credential(self, path: str) -> bool:
        """Returns whether a watched path has credentials of the kubelet, which are no drift when they are lost."""
        folder = self.node.config.paths.kubernetes.kubelet_dir
        return path == f"{folder}/kubeconfig" or path.startswith(f"{folder}/pki/")

    def record_poll(self, event: PollEvent) -> SourceAnswered:
        """Records a poll for `status` and reports; returns what it says of the node."""
        result, problem = event.result, event.credentials_problem
        newest = self.connection.receiver.newest_version if self.connection else ""
        changes: dict[str, Any] = {} if problem is None else {"credentials_problem": problem}
        if result.is_ok:
            changes |= {"last_answer": format_utc(), "newest_version": newest}
        if self.connection:
            changes["not_accepted"] = self.connection.receiver.not_accepted
        self.state = replace(self.state.with_provider_state(result.state, result.message), **changes)
        if not self._agent_confirmed:  # an agent that completes a poll passes its trial
            self._agent_confirmed = True
            self_update.confirm_trial(self.node.host, self.node.config)
            with contextlib.suppress(MachineError):  # a full disk does not stop the daemon
                self_update.raise_floor(self.node.host)
        return SourceAnswered(result.state, result.is_ok and newest == self.node.versions.current)

    def record_drift(self, fresh: tuple[Drift, ...]) -> None:
        self.state = replace(
            self.state,
            drift=tuple(one.description for one in self.drift.found),
            drift_count=self.state.drift_count + len(fresh),
            last_drift=format_utc() if fresh else self.state.last_drift,
        )

    def report(self, history: JobHistory, running: JobKind | None) -> dict[str, Any]:
        return conditions.build_report(
            report_input(self.node, self.drift, self.state, self.lifecycle.health, history, running)
        )

    def save(self) -> None:
        settled = self.lifecycle.settled_node
        self.store.save(replace(self.state, conflicts=self.drift.conflicts, settled_node=settled))

    def save_metrics(self, report: dict[str, Any]) -> None:
        if path := self.node.config.agent.metrics_file:
            self.store.save_metrics(path, conditions.render_metrics(self.state, self.lifecycle.health, report))


def open_session(
    node: ManagedNode,
    on_event: Callable[[ControllerEvent], None],
    make_monitor: Callable[[ManagedNode, Conflicts], DriftMonitor] = DriftMonitor,
) -> Session:
    """Opens a session for the configuration in effect, with the stored state of the previous session."""
    with contextlib.suppress(MachineError):  # a full disk does not stop the daemon
        config_store.keep_copy(node.host)
    store = StateStore(node.host, lambda error: node.log_event(error.name, error.message, "warning"))
    state = store.load()
    schedule = node.source.schedule
    connection = _connect(node, schedule, on_event) if schedule else None
    is_standalone = state.provider_state is ProviderState.STANDALONE
    if is_standalone is not (connection is None):  # the node became standalone, or became managed
        state = state.with_provider_state(ProviderState.STARTING if connection else ProviderState.STANDALONE, "")
    joined = node_state.load(node.host, node.config)
    state = replace(state, last_applied=max(state.last_applied, joined.applied))
    monitor = make_monitor(node, state.conflicts.for_configuration(node.versions.current))
    leaving = Leaving(state.provider_state) if state.provider_state in LEAVING_STATES else None
    lifecycle = Lifecycle(
        schedule.interval if schedule else None,
        node.source.signals_by_node,
        leaving,
        settled_node=state.settled_node,
    )
    return Session(node, monitor, connection, store, state, on_event, digest_config(node), lifecycle)


def _is_window_open(window: MaintenanceWindow, now: float) -> bool:
    try:
        return next_opening(window, datetime.fromtimestamp(now, timezone.utc)) is None
    except MachineError:
        return True  # the update job reports the error


def digest_config(node: ManagedNode) -> bytes:
    """Returns a digest of the stored configuration; it changes also when only a secret changes."""
    return hashlib.sha256(node.host.read(CURRENT_CONFIG) or b"").digest()


def _connect(
    node: ManagedNode, schedule: PollSchedule, on_event: Callable[[ControllerEvent], None]
) -> SourceConnection:
    source = node.source
    receiver = ConfigReceiver(
        node.host,
        source,
        lambda result, problem: on_event(PollEvent(result, problem)),
        source.probe,
        node.versions.newest,
    )
    poller = Poller(
        source.poll,
        PollBackoff(schedule.interval),
        lambda: 0 if receiver.has_pending_credentials else schedule.wait,
        lambda: receiver.newest_version,
        receiver.handle,
        lambda result: on_event(PollEvent(result, None)),
    )
    return SourceConnection(receiver, poller, StatusReporter(source) if source.accepts_reports else None)
