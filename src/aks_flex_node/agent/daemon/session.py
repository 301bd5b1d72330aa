"""A session of the daemon under one configuration: node, provider connection, drift monitor and state.

The whole session is replaced when the configuration may have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from aks_flex_node.agent import self_update
from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.daemon import conditions
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.daemon.daemon_state import DaemonState, StateStore
from aks_flex_node.agent.daemon.drift_monitor import Conflicts, DriftMonitor
from aks_flex_node.agent.daemon.poller import PollBackoff, Poller
from aks_flex_node.agent.daemon.status_reporter import StatusReporter, report_input
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, PollResult, ProviderState
from aks_flex_node.agent.reconcile import node_state
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


REREAD_SECONDS = 90.0  # to wait for the source before a deleted Node is registered again
CONFLICT_SECONDS = 600.0  # twice the time after which the provider accepts another machine


@frozen
class PollEvent:
    result: PollResult
    credentials_problem: str | None  # why new credentials are not in use; None if unchanged


@frozen
class FilesChanged:
    paths: frozenset[str]


@frozen
class NodeChanged:
    """The Node was deleted, created again or changed in its metadata."""

    is_deleted: bool


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
class Session:
    node: ManagedNode
    drift: DriftMonitor
    connection: SourceConnection | None  # None for a standalone node
    store: StateStore
    state: DaemonState
    on_event: Callable[[ControllerEvent], None]
    config_digest: bytes = b""  # of the configuration for which the session was opened
    health: NodeHealth = field(default_factory=NodeHealth)
    health_due: float = 0.0
    drift_due: float = 0.0
    drift_earliest: float = 0.0  # rate limit of drift checks
    health_earliest: float = 0.0  # rate limit of health checks after changes of files
    credential_loss_count: int = 0  # consecutive health checks with lost credentials
    deleted: bool = False  # confirmed by two polls, one interval apart
    replaced: bool = False  # the node lives on another machine, confirmed over a longer time if it was not moved
    operation_pending: bool = False  # a MachineOperation in the cluster is for this machine
    _leaving: tuple[ProviderState, float] | None = None  # deletion or replacement, and its first poll
    _agent_confirmed: bool = False
    _node_gone_since: float | None = None  # when the deletion of the Node was noticed
    _reread: bool = False  # the source has answered a poll since then
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

    @property
    def recovery_reason(self) -> str:
        """Why the node's credentials must be recovered; empty if they need not.

        A standalone node has only the token of its configuration, so a certificate that still works is kept.
        """
        return self.health.recovery_reason if self.connection else self.health.lost_reason

    def is_credential(self, path: str) -> bool:
        """Returns whether a watched path has credentials of the kubelet, which are no drift when they are lost."""
        folder = self.node.config.paths.kubernetes.kubelet_dir
        return path == f"{folder}/kubeconfig" or path.startswith(f"{folder}/pki/")

    @property
    def is_node_deleted(self) -> bool:
        """Whether the Node was deleted since the configuration in effect was settled; it may be back meanwhile."""
        node, settled = self.health.node, self.state.settled_node
        return self.health.node_missing or (node is not None and bool(settled) and node.uid != settled)

    @property
    def is_node_released(self) -> bool:
        """Whether the source deleted the Node to allow a disturbance. Its newest configuration is known."""
        return self.node.source.signals_by_node and self.is_node_deleted and self._reread

    @property
    def is_removal_confirmed(self) -> bool:
        """Whether the node resource was deleted, and the source shows it by the Node if it uses that signal."""
        if not self.deleted or not self.node.source.signals_by_node:
            return self.deleted
        node = self.health.node
        return self.is_node_deleted or (node is not None and node.is_marked_for_removal)

    def may_recover(self, now: float) -> bool:
        """Whether a deleted Node may be registered again: the source was asked for its reason first, in vain or not,
        and did not answer that the node resource is deleted.
        """
        if not (self.health.node_missing and self.node.source.signals_by_node):
            return True
        if self.state.provider_state is ProviderState.DELETED and self.node.config.agent.unbootstrap_on_delete:
            return False
        return self._reread or (self._node_gone_since is not None and now - self._node_gone_since >= REREAD_SECONDS)

    def record_health(self, health: NodeHealth, now: float) -> None:
        self.health = health
        if health.node and health.node.uid and not self.state.settled_node:
            self.state = replace(self.state, settled_node=health.node.uid)
        if not self.is_node_deleted:
            self._node_gone_since, self._reread = None, False
        elif self._node_gone_since is None:
            self._node_gone_since, self._reread = now, False
            self.wake_poller()

    def wake_poller(self) -> None:
        """Polls at once if the source signals by the Node."""
        if self.connection and self.node.source.signals_by_node:
            self.connection.poller.wake()

    def settle_node(self, uid: str) -> None:
        """Records that an update has used the permission of a deleted Node, and ended with the Node of this UID. If
        the UID is unknown, the next health check sets it.
        """
        if uid != self.state.settled_node:
            self.state = replace(self.state, settled_node=uid)

    def record_poll(self, event: PollEvent, now: float) -> None:
        result, problem = event.result, event.credentials_problem
        changes: dict[str, Any] = {} if problem is None else {"credentials_problem": problem}
        if result.is_ok:
            changes |= {"last_answer": format_utc(), "newest_version": self._newest_version}
        if self.connection:
            changes["not_accepted"] = self.connection.receiver.not_accepted
        self.state = replace(self.state.with_provider_state(result.state, result.message), **changes)
        if result.is_ok:
            # The source has no newer configuration for this Node: a later deletion of it is a new signal.
            self._reread = self._node_gone_since is not None
            node = self.health.node
            if node and node.uid and self._newest_version == self.node.versions.current:
                self.settle_node(node.uid)
                self._node_gone_since, self._reread = None, False
        self._record_leaving(result, now)
        if not self._agent_confirmed:  # an agent that completes a poll passes its trial
            self._agent_confirmed = True
            self_update.confirm_trial(self.node.host, self.node.config)
            with contextlib.suppress(MachineError):  # a full disk does not stop the daemon
                self_update.raise_floor(self.node.host)

    @property
    def _newest_version(self) -> str:
        return self.connection.receiver.newest_version if self.connection else ""

    def _record_leaving(self, result: PollResult, now: float) -> None:
        """Requires two consecutive results, one interval apart, because unbootstrap cannot be reverted.

        An undecided conflict takes longer, and ends here only if the Node certainly lives on another machine: the ID
        of this machine may have changed.
        """
        if self._leaving is None or self._leaving[0] is not result.state:
            self._leaving = (result.state, now) if result.state in LEAVING_STATES else None
            self.deleted = self.replaced = False
        if self._leaving is None:
            return
        waited, schedule = now - self._leaving[1], self.node.source.schedule
        decided = result.state is not ProviderState.ON_ANOTHER_MACHINE
        if waited >= ((schedule.interval if schedule else 0.0) if decided else CONFLICT_SECONDS):
            self.deleted = result.state is ProviderState.DELETED
            self.replaced = not self.deleted and (decided or self.node.is_another_machine())

    def record_drift(self, fresh: tuple[Drift, ...]) -> None:
        self.state = replace(
            self.state,
            drift=tuple(one.description for one in self.drift.found),
            drift_count=self.state.drift_count + len(fresh),
            last_drift=format_utc() if fresh else self.state.last_drift,
        )

    def report(self, history: JobHistory, running: JobKind | None) -> dict[str, Any]:
        return conditions.build_report(report_input(self.node, self.drift, self.state, self.health, history, running))

    def send(self, report: dict[str, Any]) -> None:
        if self.connection and self.connection.reporter:
            self.connection.reporter.update(report)

    def save(self) -> None:
        self.store.save(replace(self.state, conflicts=self.drift.conflicts))

    def save_metrics(self, report: dict[str, Any]) -> None:
        if path := self.node.config.agent.metrics_file:
            self.store.save_metrics(path, conditions.render_metrics(self.state, self.health, report))


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
    return Session(node, monitor, connection, store, state, on_event, digest_config(node))


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
