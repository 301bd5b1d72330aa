"""The daemon's controller: takes events of the poller, the file watcher and the job runner from one queue,
and decides what is next.

Also the sd_notify client through which systemd supervises it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.agent.components.agent import JOB_RESULT
from aks_flex_node.agent.daemon import daemon_state as kept
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.daemon.poller import PollBackoff, Poller
from aks_flex_node.agent.daemon.scheduler import CONNECT, LEAVE, RECOVER, REPAIR, UPDATE, JobHistory, next_job
from aks_flex_node.agent.daemon.status_reporter import StatusReporter
from aks_flex_node.agent.jobs import job_result
from aks_flex_node.agent.jobs.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.runner import JobRunner
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.reconcile.lock import is_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.daemon.managed_node import ManagedNode


HEALTH_SECONDS = 30.0  # between two looks at the node, its services and its certificate
SETTLE_SECONDS = 0.5  # whoever changes one file often changes some more
DRIFT_MIN_SECONDS = 5.0  # between two looks at everything, however often somebody touches something
MAX_WAIT_SECONDS = 15.0


@dataclass(frozen=True)
class PollEvent:
    result: PollResult
    credentials: str


@dataclass(frozen=True)
class FilesChanged:
    paths: frozenset[str]


@dataclass(frozen=True)
class StopRequest:
    pass


ControllerEvent: TypeAlias = "PollEvent | FilesChanged | JobResult | StopRequest"


@dataclass
class Controller:
    open_node: Callable[[], ManagedNode]  # anew after each change of the configuration
    notifier: SystemdNotifier
    is_busy: Callable[[], bool] = is_held  # somebody is at work by hand
    clock: Callable[[], float] = time.monotonic
    events: queue.SimpleQueue[ControllerEvent] = field(
        default_factory=queue.SimpleQueue
    )  # the kind that signals may put into
    history: JobHistory = field(default_factory=JobHistory.empty)

    def run(self) -> None:
        """Until somebody says stop."""
        self.start()
        while self.reconcile():
            pass
        self.shut_down()

    def start(self) -> None:
        self._open()
        self.works = JobRunner(self.site.host, self.site.program, self.events.put)
        if not self.works.adopt_running() and (known := job_result.read_result(self.site.host, JOB_RESULT)):
            self._record_result(known)  # what did not work in an earlier life would not work in this one
        self.notifier.ready()
        self.site.log_event("following", f"following the configuration at {self.site.provider.endpoint.origin}")

    def shut_down(self) -> None:
        self.notifier.stopping()
        self._close()

    def stop(self) -> None:
        self.events.put(StopRequest())

    def _open(self) -> None:
        """Begin to watch and to ask, as the configuration in effect says."""
        site = self.site = self.open_node()
        self.notes = kept.read(site.host, site.state_file)
        site.restore(self.notes)
        self._missed = 0
        self._gone: float | None = None  # when the provider first said that our resource is gone
        self._deleted = False
        self._look_due = self._drift_due = self._drift_soonest = 0.0
        accepting = ConfigReceiver(
            site.host, site.provider, self._queue_poll, site.probe_provider, site.newest_version()
        )
        self.accepting = accepting
        settings = site.config.provider
        pace = PollBackoff(settings.poll_seconds)
        self.poller = Poller(
            site.provider,
            pace,
            lambda: 0 if accepting.has_pending_credentials else settings.wait_seconds,
            lambda: accepting.newest_version,
            accepting.handle,
            lambda verdict: self._queue_poll(verdict, self.notes.credentials),
        )
        self.teller = StatusReporter(site.provider)
        self.poller.start()
        self.teller.start()
        site.watch(lambda paths: self.events.put(FilesChanged(paths)))

    def _close(self) -> None:
        self.accepting.close()
        self.poller.stop()
        self.teller.stop()
        self.site.close()

    def _queue_poll(self, verdict: PollResult, credentials: str) -> None:
        self.events.put(PollEvent(verdict, credentials))

    def reconcile(self) -> bool:
        """Take the next thing that happened, or what is due, and decide."""
        event: ControllerEvent | None = None
        with contextlib.suppress(queue.Empty):
            event = self.events.get(timeout=self.seconds_until_due)
        if isinstance(event, StopRequest) or self.site.is_unbootstrapped:
            return False
        if event:
            self._handle(event)
        if self.poller.is_stuck:
            self.site.log_event(
                "poller-hangs", "The provider has not been asked for too long: all begins anew.", "error"
            )
            self._close()
            self._open()
        self._check_health()
        if not self.works.running:
            self._check_drift()
            self._start_next_job()
        self._report_status()
        return True

    @property
    def seconds_until_due(self) -> float:
        """Seconds until there is something to look at. For drift nobody looks while a work is under way."""
        due = self._look_due if self.works.running else min(self._look_due, self._drift_due)
        return max(0.0, min(due - self.clock(), MAX_WAIT_SECONDS))

    def _handle(self, event: PollEvent | FilesChanged | JobResult) -> None:
        match event:
            case PollEvent(verdict, credentials):
                self._handle_poll(verdict, credentials)
            case FilesChanged():
                soon = max(self.clock() + SETTLE_SECONDS, self._drift_soonest)
                self._drift_due = min(self._drift_due, soon)
            case JobResult():
                self._handle_result(event)

    def _handle_poll(self, verdict: PollResult, credentials: str) -> None:
        before = self.notes.standing
        self.notes = replace(self.notes.with_provider_state(verdict.state, verdict.message), credentials=credentials)
        if verdict.is_ok:
            self.notes = replace(self.notes, asked=kept.now(), seen=self.accepting.newest_version)
        if self.notes.standing != before:
            level = "info" if verdict.is_ok else "warning"
            self.site.log_event("standing", f"{self.notes.standing}: {verdict.message}".rstrip(": "), level)
        if verdict.changed:
            self.history.forget(UPDATE)
            self.site.log_event("seen", f"configuration {verdict.version} is new", configVersion=verdict.version)
        self._track_deletion(verdict)
        self.site.confirm_agent_version()

    def _track_deletion(self, verdict: PollResult) -> None:
        """It takes two such answers in a row, an interval apart: what happens then cannot be taken back."""
        if verdict.state is not ProviderState.DELETED:
            self._gone, self._deleted = None, False
        elif self._gone is None:
            self._gone = self.clock()
        elif self.clock() - self._gone >= self.site.config.provider.poll_seconds:
            self._deleted = True

    def _record_result(self, outcome: JobResult) -> None:
        self.history.record(outcome, self.clock())
        if outcome.kind == UPDATE and outcome.result == JobStatus.DONE.value:
            self.notes = replace(self.notes, applied=outcome.at)

    def _handle_result(self, outcome: JobResult) -> None:
        self.works.clear()
        level = "info" if outcome.result == JobStatus.DONE.value else "warning"
        self.site.log_event(
            "work-ended",
            f"{outcome.kind} {outcome.result}: {outcome.message}".rstrip(": "),
            level,
            kind=outcome.kind,
            result=outcome.result,
            reason=outcome.reason,
        )
        self._record_result(outcome)
        self._save()
        self._close()
        self._open()  # also what did not succeed may have changed what is in effect
        done = outcome.result == JobStatus.DONE.value
        if done and outcome.kind == UPDATE and self.site.has_unfinished_update():
            self.history.postpone(UPDATE, self.clock())  # it did what it could, and would not do more at once

    def _check_health(self) -> None:
        """How the node is, is told also while a work is under way; what it has lost then may be the work's doing."""
        now = self.clock()
        if now < self._look_due:
            return
        self._look_due = now + HEALTH_SECONDS
        self.site.refresh_health()
        if self.site.health.failed_services:
            self._drift_due = min(self._drift_due, now)  # somebody may have stopped it
        self._missed = self._missed + 1 if self.site.health.recovery_reason and not self.works.running else 0
        if self._missed == 1:
            self._look_due = now + HEALTH_SECONDS / 12  # to be sure, soon

    def _check_drift(self) -> None:
        now = self.clock()
        if now < self._drift_due:
            return
        self._drift_due, self._drift_soonest = now + self.site.config.agent.drift_seconds, now + DRIFT_MIN_SECONDS
        fresh = self.site.detect_drift()
        count = len(fresh)
        self.notes = replace(
            self.notes,
            drift=tuple(one.description for one in self.site.drift),
            drifts=self.notes.drifts + count,
            drifted=kept.now() if count else self.notes.drifted,
        )
        for one in fresh:
            self.site.log_event("drift", one.description, "warning", component=one.component, diff=one.diff)

    def _start_next_job(self) -> None:
        if self.is_busy():
            return
        wants = self.site.scheduler_input(deleted=self._deleted, lost=self._missed >= 2)
        kind = next_job(wants, self.history, self.clock())
        if not kind:
            return
        words = self.site.job_arguments(kind)
        if self.works.start(kind, words):
            self.site.log_event("work-begins", _JOB_MESSAGES[kind], kind=kind)

    def _report_status(self) -> None:
        self.teller.update(self.site.report(self.notes, self.history, self.works.running))
        self._save()
        self.notifier.alive(
            f"{self.notes.standing}{f', {self.works.running} under way' if self.works.running else ''}"
        )

    def _save(self) -> None:
        self.site.save(self.notes)


_JOB_MESSAGES = {
    CONNECT: "the tunnel to the cluster's network is being seen to",
    LEAVE: "the resource is deleted: this machine leaves the cluster",
    UPDATE: "the new configuration is being applied",
    RECOVER: "this node is being recovered",
    REPAIR: "what has changed by hand is being repaired",
}


class SystemdNotifier:
    """Says nothing where nobody listens."""

    def __init__(self, address: str | None = None) -> None:
        given = address if address is not None else os.environ.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{given[1:]}" if given.startswith("@") else given

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self, status: str) -> None:
        self._send(f"WATCHDOG=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, words: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(words.encode(), self._address)
