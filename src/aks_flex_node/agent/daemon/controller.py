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
from aks_flex_node.agent.daemon.lifecycle import (
    Credentials,
    HealthChecked,
    JobDue,
    JobEnded,
    LifecycleEvent,
    NodeChanged,
    NodeLocated,
    StartJob,
    Step,
)
from aks_flex_node.agent.daemon.scheduler import JobHistory
from aks_flex_node.agent.daemon.session import (
    CheckTimes,
    ControllerEvent,
    FilesChanged,
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
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.agent.jobs.runner import JobRunner
from aks_flex_node.agent.managed_node import open_managed_node
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_LOCK
from aks_flex_node.agent.policy import POLICY_FILE, REFUSED_BY_POLICY, UNBOOTSTRAP, read_policy, refusal_message
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES
from aks_flex_node.agent.reconcile.lock import exclusive, is_held
from aks_flex_node.errors import BusyError, ConfigError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.jobs.registry import Job


StatusPublication: TypeAlias = "Callable[[Session, JobKind | None], None]"
HEALTH_SECONDS = 24.0  # between health checks: a dead runtime is found and repaired within half a minute
OPERATIONS_SECONDS = 600.0  # between checks for operations of the cluster
CHECK_MIN_SECONDS = 5.0  # minimum interval between checks after changes of files
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
        if not self.runner.adopt_running() and (known := job_result.RESULT.read(node.host)):
            self._record_result(known)  # keeps the backoff after a restart of the daemon
            if known.result is JobStatus.ROLLED_BACK:  # it has used up a deletion of the Node
                self.session.lifecycle = replace(self.session.lifecycle, settled_node="")
        self.staging.resume(node, self.clock())
        self.notifier.ready()
        message = f"No provider manages this node. Keeping the configuration in {CURRENT_CONFIG}."
        if node.source.schedule:
            message = f"Polling the configuration from {node.source.description.address}."
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
        for check in (self._check_health, self._check_operations, self._check_drift):
            check()
            self._notify_alive()  # it may wait for the API server
        self._start_next_job()
        self._report_status()
        return True

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next health or drift check, or retry of a job. While a job runs, drift is not checked and
        no other job starts.
        """
        session, now = self.session, self.clock()
        retries = [due for due in self.history.due.values() if due > now]
        health, drift = session.health_check.due, session.drift_check.due
        due = health if self.runner.running else min(health, drift, *retries)
        return max(0.0, min(due - now, MAX_WAIT_SECONDS))

    def _handle(self, event: PollEvent | FilesChanged | NodeChanged | JobResult) -> None:
        session, now = self.session, self.clock()
        match event:
            case PollEvent():
                self._handle_poll(event)
            case FilesChanged():
                session.drift_check.hasten(now)
                if any(map(session.is_credential, event.paths)):
                    session.health_check.hasten(now)
                # The policy has changed: retry what it refused.
                for kind in (JobKind.UPDATE, JobKind.STAGE) if POLICY_FILE in event.paths else ():
                    last = self.history.results.get(kind)
                    if last and last.reason == REFUSED_BY_POLICY:
                        self.history.hasten(kind)
            case NodeChanged():
                session.health_check.due = now
                self._decide(event)
                if event.is_deleted:
                    session.node.log_event("node-deleted", f"Node {session.node.name} was deleted from the cluster.")
            case JobResult():
                self._handle_result(event)

    def _decide(self, event: LifecycleEvent) -> None:
        """Takes the node to its state after an event, and does what is decided."""
        session = self.session
        session.lifecycle, step = event.decide(session.lifecycle, self.clock())
        match step:
            case Step.LOCATE_NODE:
                self._decide(NodeLocated(session.node.is_another_machine()))
            case Step.WAKE_POLLER if session.connection:
                session.connection.poller.wake()
            case Step.RELEASE_UPDATE:
                update_journal.write_release(session.node.host, session.node.versions.next)
            case StartJob():
                self._start_job(step.job, step.arguments)

    def _handle_poll(self, event: PollEvent) -> None:
        session, result, before = self.session, event.result, self.session.state.provider_state
        self._decide(session.record_poll(event))
        if result.state is not before:
            level = "info" if result.is_ok else "warning"
            session.node.log_event("provider-state", f"{result.state}: {result.message}".rstrip(": "), level)
            if result.state in LEAVING_STATES and (policy := read_policy(session.node.host)).forbids(UNBOOTSTRAP):
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
            unapplied = {
                "version": result.version,
                "reason": result.reason,
                "message": result.message,
                "result": str(result.result),
            }
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
        if result.kind is JobKind.REPAIR and result.reason != JOB_KILLED:
            self.session.drift.end_repair()
        if result.kind is JobKind.MACHINE_OPERATION and result.is_done:
            self.operations_due = 0.0  # there may be another one
        self._decide(JobEnded(result, self.history.results.get(JobKind.UPDATE)))
        self.session.save()
        self._reopen()  # a failed job may also have changed the configuration in effect
        if result.is_done and result.kind is JobKind.UPDATE and self.session.has_unfinished_update:
            self.history.postpone(JobKind.UPDATE, self.clock())  # an immediate retry would not get further

    def _log_result(self, result: JobResult) -> None:
        level = "info" if result.is_done else "warning"
        fields = {"kind": str(result.kind), "result": str(result.result), "reason": result.reason}
        self.session.node.log_event("job-finished", str(result), level, **fields)

    def _check_health(self) -> None:
        """Checks the node's health, also while a job runs."""
        session, now = self.session, self.clock()
        if now < session.health_check.due:
            return
        session.health_check = CheckTimes(now + HEALTH_SECONDS, now + CHECK_MIN_SECONDS)
        health = session.node.check_health()
        self._decide(HealthChecked(health, self.runner.running))
        if health.failed_services:
            session.drift_check.due = min(session.drift_check.due, now)  # a stopped service is drift
        if session.lifecycle.credentials is Credentials.DOUBTED:
            session.health_check.due = now + HEALTH_SECONDS / 12  # confirm soon

    def _check_operations(self) -> None:
        session, now = self.session, self.clock()
        if session.node.source.signals_by_node and now >= self.operations_due:
            self.operations_due = now + OPERATIONS_SECONDS
            session.has_operation = session.node.has_operation()

    def _check_drift(self) -> None:
        session, now = self.session, self.clock()
        if self.runner.running or now < session.drift_check.due:
            return
        fresh, seconds = session.drift.check(), session.node.config.agent.drift_seconds
        due = now + (min(BLOCKED_SECONDS, seconds) if session.drift.is_blocked else seconds)
        session.drift_check = CheckTimes(due, now + CHECK_MIN_SECONDS)
        session.record_drift(fresh)
        for one in fresh:
            session.node.log_event("drift", one.description, "warning", component=one.component, diff=one.diff)

    def _start_next_job(self) -> None:
        facts = None
        if not (self.runner.running or self.is_busy()):
            facts = self.session.collect_facts()
            self.staging.forget_outdated(facts.staging)
        self._decide(JobDue(self.history, facts, self.runner.running))

    def _start_job(self, job: Job, arguments: tuple[str, ...]) -> None:
        session = self.session
        if job.kind is JobKind.STAGE:
            is_started = self.staging.start(arguments[0], self.clock())
        else:
            self.staging.stop_for(job.kind)
            if job.kind is JobKind.REPAIR:
                arguments = session.drift.begin_repair()
            update_journal.remove_release(session.node.host)
            is_started = self.runner.start(job.kind, arguments)
        if is_started:
            session.node.log_event("job-started", job.start_message, kind=str(job.kind))

    def _report_status(self) -> None:
        session, running = self.session, self.runner.running
        report = session.report(self.history, running)
        session.save_metrics(report)
        if session.connection and session.connection.reporter:
            session.connection.reporter.update(report)
        session.save()
        if self.publish:
            self.publish(session, running)
        self._notify_alive()

    def _notify_alive(self) -> None:
        running = self.runner.running
        self.notifier.alive(f"{self.session.state.provider_state}{f', {running} running' if running else ''}")
