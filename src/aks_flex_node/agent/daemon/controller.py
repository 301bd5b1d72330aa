"""The daemon's controller: processes events of the poller, the file watcher and the job runner from one queue,
checks health and drift, and starts jobs.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.agent import context
from aks_flex_node.agent.daemon.scheduler import JobHistory, has_unfinished_update, next_job, scheduler_input
from aks_flex_node.agent.daemon.session import (
    ControllerEvent,
    FilesChanged,
    NodeChanged,
    PollEvent,
    Session,
    StopRequest,
    open_session,
)
from aks_flex_node.agent.daemon.stage_job import StagingJob
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier
from aks_flex_node.agent.event_log import EventLog, JournalSink
from aks_flex_node.agent.job_records import job_result, update_journal
from aks_flex_node.agent.job_records.job_result import (
    JOB_KILLED,
    WAITING_FOR_NODE_DELETION,
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.agent.jobs.registry import KEEP_NODE_OPTION, NODE_RELEASED_OPTION
from aks_flex_node.agent.jobs.runner import JobRunner
from aks_flex_node.agent.managed_node import open_managed_node
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_LOCK, JOB_RESULT
from aks_flex_node.agent.policy import POLICY_FILE, REFUSED_BY_POLICY, UNBOOTSTRAP, read_policy, refusal_message
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, REPLACED_STATES
from aks_flex_node.agent.reconcile.lock import exclusive, is_held
from aks_flex_node.errors import BusyError, ConfigError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


StatusPublication: TypeAlias = "Callable[[Session, JobKind | None], None]"
HEALTH_SECONDS = 24.0  # between health checks: a dead runtime is found and repaired within half a minute
OPERATIONS_SECONDS = 600.0  # between checks for operations of the cluster
SETTLE_SECONDS = 0.5  # collects changes of several files before a drift check
DRIFT_MIN_SECONDS = 5.0  # minimum interval between drift checks
BLOCKED_SECONDS = 10.0  # between drift checks while a service waits, for example for space
MAX_WAIT_SECONDS = 15.0
RETRY_SECONDS = 20.0  # between attempts to read a damaged configuration; below the watchdog's limit


def run_daemon(publish: StatusPublication) -> None:
    """Runs the daemon in this process until it receives SIGTERM or SIGINT. `publish` is called after each turn."""
    context.require_root()
    context.require_node()
    if is_held(DAEMON_LOCK):
        raise BusyError(
            "daemon-already-running",
            "The aks-flex-node daemon is already running on this machine.",
            "To run it in the foreground, stop the service first: `systemctl stop aks-flex-node`.",
        )
    with exclusive(DAEMON_LOCK):
        run_controller(
            lambda on_event: open_session(open_managed_node(), on_event),
            SystemdNotifier(),
            publish,
            context.config_or_applied,
        )


def run_controller(
    open_session: Callable[[Callable[[ControllerEvent], None]], Session],
    notifier: SystemdNotifier,
    publish: StatusPublication | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Runs a controller until SIGTERM or SIGINT, including signals received while the first session opens. It starts
    when `check` raises no ConfigError.
    """
    events: queue.SimpleQueue[ControllerEvent] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: events.put(StopRequest()))
    if wait_until_readable(check, notifier, events):
        Controller(open_session, notifier, publish, events=events).run()


def wait_until_readable(
    check: Callable[[], object],
    notifier: SystemdNotifier,
    events: queue.SimpleQueue[ControllerEvent],
    sleep_seconds: float = RETRY_SECONDS,
) -> bool:
    """Waits until the configuration in effect can be read, because without it there is nothing to do, and a restart
    does not help. Returns False if the daemon is stopped meanwhile.
    """
    told = ""
    while True:
        try:
            check()
        except ConfigError as error:
            if str(error) != told:
                told = str(error)
                EventLog(JournalSink()).emit("configuration-damaged", told, "error", error=error.name)
            notifier.ready()
            notifier.alive(f"degraded: {error.message}")
        else:
            return True
        with contextlib.suppress(queue.Empty):
            if isinstance(events.get(timeout=sleep_seconds), StopRequest):
                return False


@dataclass
class Controller:
    open_session: Callable[[Callable[[ControllerEvent], None]], Session]  # after each change of configuration
    notifier: SystemdNotifier
    publish: StatusPublication | None = None  # for `status` without root
    is_busy: Callable[[], bool] = is_held  # another command is changing the machine
    clock: Callable[[], float] = time.monotonic
    events: queue.SimpleQueue[ControllerEvent] = field(
        default_factory=queue.SimpleQueue
    )  # reentrant: signal handlers put events
    history: JobHistory = field(default_factory=JobHistory.empty)
    operations_due: float = 0.0
    session: Session = field(init=False)
    runner: JobRunner = field(init=False)
    staging: StagingJob = field(init=False)

    def __post_init__(self) -> None:
        self.session = self.open_session(self.events.put)
        host, program = self.session.node.host, self.session.node.program
        self.runner = JobRunner(host, program, self.events.put)
        self.staging = StagingJob.on(host, program, self.events.put, self.history)

    def run(self) -> None:
        """Runs until a stop request."""
        self.start()
        while self.reconcile():
            pass
        self.shut_down()

    def start(self) -> None:
        node = self.session.node
        self.session.start()
        if not self.runner.adopt_running() and (known := job_result.read_result(node.host, JOB_RESULT)):
            self._record_result(known)  # keeps the backoff after a restart of the daemon
            if known.result is JobStatus.ROLLED_BACK:
                self.session.settle_node("")
        self.staging.resume(node, self.clock())
        self.notifier.ready()
        standalone = f"No provider manages this node. Keeping the configuration in {CURRENT_CONFIG}."
        message = f"Polling the configuration from {node.source.description.address}."
        message = message if node.source.schedule else standalone
        node.log_event("daemon-started", message)

    def shut_down(self) -> None:
        self.notifier.stopping()
        self.session.close()

    def _reopen(self) -> None:
        """Replaces the session with one for the configuration in effect."""
        self.session.close()
        self.session = self.open_session(self.events.put)
        self.session.start()

    def reconcile(self) -> bool:
        """Processes one event or due check, and starts the next job; returns False to stop."""
        event: ControllerEvent | None = None
        with contextlib.suppress(queue.Empty):
            event = self.events.get(timeout=self.seconds_until_due)
        if isinstance(event, StopRequest) or self.session.node.versions.has_left:
            return False
        if event:
            self._handle(event)
            self._notify_alive()
        if self.session.is_stuck:
            message = "The poller is stuck. Restarting the session."
            self.session.node.log_event("poller-hangs", message, "error")
            self._reopen()
        elif not (self.runner.running or self.is_busy()) and self.session.is_outdated:
            self.session.node.log_event("configuration-changed", "Another command changed the configuration.")
            self._reopen()
        self._check_health()
        self._notify_alive()  # each of these steps may wait for the API server
        session, now = self.session, self.clock()
        if session.node.source.signals_by_node and now >= self.operations_due:
            self.operations_due = now + OPERATIONS_SECONDS
            session.operation_pending = session.node.has_operation()
        self._notify_alive()
        if not self.runner.running:
            self._check_drift()
            self._start_next_job()
        elif self.runner.running is JobKind.UPDATE and self.session.is_node_released:
            # An update that is still staging its programs need not end and start again.
            update_journal.write_release(self.session.node.host, self.session.node.versions.next)
        self._report_status()
        return True

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next health or drift check, or retry of a job. While a job runs, drift is not checked and
        no other job starts.
        """
        session, now = self.session, self.clock()
        retries = [due for due in self.history.due.values() if due > now]
        due = session.health_due if self.runner.running else min(session.health_due, session.drift_due, *retries)
        return max(0.0, min(due - now, MAX_WAIT_SECONDS))

    def _handle(self, event: PollEvent | FilesChanged | NodeChanged | JobResult) -> None:
        session = self.session
        match event:
            case PollEvent():
                self._handle_poll(event)
            case FilesChanged():
                soon = max(self.clock() + SETTLE_SECONDS, session.drift_earliest)
                session.drift_due = min(session.drift_due, soon)
                if POLICY_FILE in event.paths:
                    # The policy has changed: retry what it refused.
                    for kind in (JobKind.UPDATE, JobKind.STAGE):
                        last = self.history.results.get(kind)
                        if last and last.reason == REFUSED_BY_POLICY:
                            self.history.hasten(kind)
                if any(map(session.is_credential, event.paths)):
                    soon = max(self.clock() + SETTLE_SECONDS, session.health_earliest)
                    session.health_due = min(session.health_due, soon)
            case NodeChanged():
                session.health_due = self.clock()
                session.wake_poller()
                if event.is_deleted:
                    # The watch and the next health check confirm each other.
                    session.credential_loss_count = max(1, session.credential_loss_count)
                    session.node.log_event("node-deleted", f"Node {session.node.name} was deleted from the cluster.")
            case JobResult():
                self._handle_result(event)

    def _handle_poll(self, event: PollEvent) -> None:
        session, result, before = self.session, event.result, self.session.state.provider_state
        session.record_poll(event, self.clock())
        if result.state is not before:
            level = "info" if result.is_ok else "warning"
            session.node.log_event("provider-state", f"{result.state}: {result.message}".rstrip(": "), level)
        if result.state in LEAVING_STATES and result.state is not before:
            policy = read_policy(session.node.host)
            if policy.forbids(UNBOOTSTRAP):
                message = refusal_message(policy, [f"the removal of this node ({UNBOOTSTRAP})"])
                session.node.log_event("unbootstrap-refused", message, "warning")
        if result.next_problem:
            message = f"The next configuration of the provider is ignored: {result.next_problem}."
            session.node.log_event("next-configuration-invalid", message, "warning")
        if result.changed:
            self.history.forget(JobKind.UPDATE)
            message = f"Received configuration {result.version}."
            session.node.log_event("configuration-found", message, configVersion=result.version)

    def _record_result(self, result: JobResult) -> None:
        self.history.record(result, self.clock())
        if result.kind is JobKind.UPDATE and result.is_done:
            self.session.state = replace(self.session.state, last_applied=result.at, unapplied={})
        elif result.kind is JobKind.UPDATE:
            about = {"version": result.version, "reason": result.reason, "message": result.message}
            unapplied = {**about, "result": str(result.result)}
            self.session.state = replace(self.session.state, unapplied=unapplied)

    def _handle_result(self, result: JobResult) -> None:
        if result.kind is JobKind.STAGE:
            if known := self.staging.finish(result, self.session.node, self.clock()):
                self._log_result(known)
            return
        self.runner.clear()
        update_journal.remove_release(self.session.node.host)
        self._log_result(result)
        self._record_result(result)
        if result.kind is JobKind.MACHINE_OPERATION and result.is_done:
            self.operations_due = 0.0  # there may be another one
        if result.kind is JobKind.REPAIR and result.reason != JOB_KILLED:
            self.session.drift.end_repair()
        if self._uses_up_permission(result):
            self.session.settle_node(result.node_uid)
        self.session.save()
        self._reopen()  # a failed job may also have changed the configuration in effect
        if result.is_done and result.kind is JobKind.UPDATE and has_unfinished_update(self.session.node):
            self.history.postpone(JobKind.UPDATE, self.clock())  # an immediate retry would not get further

    def _log_result(self, result: JobResult) -> None:
        level = "info" if result.is_done else "warning"
        fields = {"kind": str(result.kind), "result": str(result.result), "reason": result.reason}
        self.session.node.log_event("job-finished", str(result), level, **fields)

    def _uses_up_permission(self, result: JobResult) -> bool:
        """Returns whether a deletion of the Node permits no further disturbance: the update is over, or the node was
        recovered although its newest configuration will not be applied.
        """
        update = self.history.results.get(JobKind.UPDATE)
        if result.kind is JobKind.UPDATE:
            return result.result in {JobStatus.DONE, JobStatus.ROLLED_BACK}
        given_up = update is not None and update.result in {JobStatus.ROLLED_BACK, JobStatus.REFUSED}
        return result.kind is JobKind.RECOVER and result.is_done and given_up

    def _check_health(self) -> None:
        """Checks the node's health, also while a job runs; lost credentials count only when no job runs."""
        session, now = self.session, self.clock()
        if now < session.health_due:
            return
        session.health_due = now + HEALTH_SECONDS
        session.health_earliest = now + DRIFT_MIN_SECONDS
        session.record_health(session.node.check_health(), now)
        if session.health.failed_services:
            session.drift_due = min(session.drift_due, now)  # a stopped service is drift
        lost = session.recovery_reason and not self.runner.running
        session.credential_loss_count = session.credential_loss_count + 1 if lost else 0
        if session.credential_loss_count == 1:
            session.health_due = now + HEALTH_SECONDS / 12  # confirm soon

    def _check_drift(self) -> None:
        session, now = self.session, self.clock()
        if now < session.drift_due:
            return
        session.drift_earliest = now + DRIFT_MIN_SECONDS
        fresh = session.drift.check()
        interval = session.node.config.agent.drift_seconds
        session.drift_due = now + (min(BLOCKED_SECONDS, interval) if session.drift.is_blocked else interval)
        session.record_drift(fresh)
        for one in fresh:
            session.node.log_event("drift", one.description, "warning", component=one.component, diff=one.diff)

    def _start_next_job(self) -> None:
        if self.is_busy():
            return
        session = self.session
        inputs = scheduler_input(
            session.node,
            session.drift,
            deleted=session.is_removal_confirmed,
            credentials_lost=session.credential_loss_count >= 2 and session.may_recover(self.clock()),
            replaced=session.replaced,
            node_released=session.is_node_released,
            operation_pending=session.operation_pending,
        )
        if session.is_node_released and self._waits_for_node_deletion:
            self.history.hasten(JobKind.UPDATE)
        self.staging.forget_outdated(inputs.staging)
        job = next_job(inputs, self.history, self.clock())
        if job is None:
            return
        if job.kind is JobKind.STAGE:
            if self.staging.start(inputs.staging, self.clock()):
                session.node.log_event("job-started", job.start_message, kind=str(job.kind))
            return
        self.staging.stop_for(job.kind)
        arguments = session.drift.begin_repair() if job.kind is JobKind.REPAIR else ()
        if job.kind is JobKind.UNBOOTSTRAP and session.state.provider_state in REPLACED_STATES:
            arguments = (KEEP_NODE_OPTION,)
        if job.kind is JobKind.UPDATE and session.is_node_released:
            arguments = (NODE_RELEASED_OPTION,)
        update_journal.remove_release(session.node.host)
        if self.runner.start(job.kind, arguments):
            session.node.log_event("job-started", job.start_message, kind=str(job.kind))

    @property
    def _waits_for_node_deletion(self) -> bool:
        last = self.history.results.get(JobKind.UPDATE)
        return last is not None and last.reason == WAITING_FOR_NODE_DELETION

    def _report_status(self) -> None:
        session, running = self.session, self.runner.running
        report = session.report(self.history, running)
        session.save_metrics(report)
        session.send(report)
        session.save()
        if self.publish:
            self.publish(session, running)
        self._notify_alive()

    def _notify_alive(self) -> None:
        running = self.runner.running
        self.notifier.alive(f"{self.session.state.provider_state}{f', {running} running' if running else ''}")
