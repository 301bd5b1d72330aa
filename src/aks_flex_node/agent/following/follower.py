"""The agent that stays: sees what is new and what has changed, decides what is to be done, and has it done.

One thread asks the provider, one watches files, one waits for the work that is under way. They put what happened into
one queue, and everything is decided here, one thing after another.
"""

from __future__ import annotations

import contextlib
import queue
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.agent import works
from aks_flex_node.agent.components.agent import WORK
from aks_flex_node.agent.engine.locking import is_held
from aks_flex_node.agent.following import notes as kept
from aks_flex_node.agent.following.accepting import Accepting
from aks_flex_node.agent.following.deciding import CONNECT, LEAVE, RECOVER, REPAIR, UPDATE, Memory, choose
from aks_flex_node.agent.following.pace import Pace
from aks_flex_node.agent.following.polling import Poller
from aks_flex_node.agent.following.telling import Teller
from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.agent.following.working import Works
from aks_flex_node.agent.works import Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.following.notify import Notifier
    from aks_flex_node.agent.following.site import Site

LOOK_SECONDS = 30.0  # between two looks at the node, its services and its certificate
SETTLE_SECONDS = 0.5  # whoever changes one file often changes some more
DRIFT_LEAST_SECONDS = 5.0  # between two looks at everything, however often somebody touches something
TICK = 15.0


@dataclass(frozen=True)
class Polled:
    verdict: Verdict
    credentials: str


@dataclass(frozen=True)
class Touched:
    paths: frozenset[str]


@dataclass(frozen=True)
class Stop:
    pass


Event: TypeAlias = "Polled | Touched | Outcome | Stop"


@dataclass
class Follower:
    open_site: Callable[[], Site]  # anew after each change of the configuration
    notifier: Notifier
    is_busy: Callable[[], bool] = is_held  # somebody is at work by hand
    clock: Callable[[], float] = time.monotonic
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)  # the kind that signals may put into
    memory: Memory = field(default_factory=Memory.empty)

    def run(self) -> None:
        """Until somebody says stop."""
        self.begin()
        while self.step():
            pass
        self.end()

    def begin(self) -> None:
        self._open()
        self.works = Works(self.site.host, self.site.program, self.events.put)
        if not self.works.await_earlier() and (known := works.read(self.site.host, WORK)):
            self._remember(known)  # what did not work in an earlier life would not work in this one
        self.notifier.ready()
        self.site.say("following", f"following the configuration at {self.site.provider.endpoint.origin}")

    def end(self) -> None:
        self.notifier.stopping()
        self._close()

    def stop(self) -> None:
        self.events.put(Stop())

    def _open(self) -> None:
        """Begin to watch and to ask, as the configuration in effect says."""
        site = self.site = self.open_site()
        self.notes = kept.read(site.host, site.notes_file)
        site.remember(self.notes)
        self._missed = 0
        self._gone: float | None = None  # when the provider first said that our resource is gone
        self._deleted = False
        self._look_due = self._drift_due = self._drift_soonest = 0.0
        accepting = Accepting(site.host, site.provider, self._report, site.try_way, site.newest())
        self.accepting = accepting
        settings = site.config.provider
        pace = Pace(settings.poll_seconds)
        self.poller = Poller(
            site.provider,
            pace,
            lambda: 0 if accepting.waits else settings.wait_seconds,
            lambda: accepting.seen,
            accepting.take,
            lambda verdict: self._report(verdict, self.notes.credentials),
        )
        self.teller = Teller(site.provider)
        self.poller.start()
        self.teller.start()
        site.watch(lambda paths: self.events.put(Touched(paths)))

    def _close(self) -> None:
        self.accepting.close()
        self.poller.stop()
        self.teller.stop()
        self.site.close()

    def _report(self, verdict: Verdict, credentials: str) -> None:
        self.events.put(Polled(verdict, credentials))

    def step(self) -> bool:
        """Take the next thing that happened, or what is due, and decide."""
        event: Event | None = None
        with contextlib.suppress(queue.Empty):
            event = self.events.get(timeout=self.rest)
        if isinstance(event, Stop) or self.site.has_left:
            return False
        if event:
            self._handle(event)
        if self.poller.is_late:
            self.site.say("poller-hangs", "The provider has not been asked for too long: all begins anew.", "error")
            self._close()
            self._open()
        self._look()
        if not self.works.kind:
            self._look_for_drift()
            self._decide()
        self._tell()
        return True

    @property
    def rest(self) -> float:
        """Seconds until there is something to look at. For drift nobody looks while a work is under way."""
        due = self._look_due if self.works.kind else min(self._look_due, self._drift_due)
        return max(0.0, min(due - self.clock(), TICK))

    def _handle(self, event: Polled | Touched | Outcome) -> None:
        match event:
            case Polled(verdict, credentials):
                self._hear(verdict, credentials)
            case Touched():
                soon = max(self.clock() + SETTLE_SECONDS, self._drift_soonest)
                self._drift_due = min(self._drift_due, soon)
            case Outcome():
                self._finish(event)

    def _hear(self, verdict: Verdict, credentials: str) -> None:
        before = self.notes.standing
        self.notes = replace(self.notes.standing_at(verdict.standing, verdict.message), credentials=credentials)
        if verdict.good:
            self.notes = replace(self.notes, asked=kept.now(), seen=self.accepting.seen)
        if self.notes.standing != before:
            level = "info" if verdict.good else "warning"
            self.site.say("standing", f"{self.notes.standing}: {verdict.message}".rstrip(": "), level)
        if verdict.changed:
            self.memory.forget(UPDATE)
            self.site.say("seen", f"configuration {verdict.version} is new", configVersion=verdict.version)
        self._hear_of_deletion(verdict)
        self.site.prove_agent()

    def _hear_of_deletion(self, verdict: Verdict) -> None:
        """It takes two such answers in a row, an interval apart: what happens then cannot be taken back."""
        if verdict.standing is not Standing.DELETED:
            self._gone, self._deleted = None, False
        elif self._gone is None:
            self._gone = self.clock()
        elif self.clock() - self._gone >= self.site.config.provider.poll_seconds:
            self._deleted = True

    def _remember(self, outcome: Outcome) -> None:
        self.memory.note(outcome, self.clock())
        if outcome.kind == UPDATE and outcome.result == Result.DONE.value:
            self.notes = replace(self.notes, applied=outcome.at)

    def _finish(self, outcome: Outcome) -> None:
        self.works.settle()
        level = "info" if outcome.result == Result.DONE.value else "warning"
        self.site.say(
            "work-ended",
            f"{outcome.kind} {outcome.result}: {outcome.message}".rstrip(": "),
            level,
            kind=outcome.kind,
            result=outcome.result,
            reason=outcome.reason,
        )
        self._remember(outcome)
        self._save()
        self._close()
        self._open()  # also what did not succeed may have changed what is in effect
        done = outcome.result == Result.DONE.value
        if done and outcome.kind == UPDATE and self.site.is_unfinished():
            self.memory.put_off(UPDATE, self.clock())  # it did what it could, and would not do more at once

    def _look(self) -> None:
        """How the node is, is told also while a work is under way; what it has lost then may be the work's doing."""
        now = self.clock()
        if now < self._look_due:
            return
        self._look_due = now + LOOK_SECONDS
        self.site.look()
        if self.site.sight.fallen:
            self._drift_due = min(self._drift_due, now)  # somebody may have stopped it
        self._missed = self._missed + 1 if self.site.sight.trouble and not self.works.kind else 0
        if self._missed == 1:
            self._look_due = now + LOOK_SECONDS / 12  # to be sure, soon

    def _look_for_drift(self) -> None:
        now = self.clock()
        if now < self._drift_due:
            return
        self._drift_due, self._drift_soonest = now + self.site.config.agent.drift_seconds, now + DRIFT_LEAST_SECONDS
        fresh = self.site.look_for_drift()
        count = len(fresh)
        self.notes = replace(
            self.notes,
            drift=tuple(one.what for one in self.site.drift),
            drifts=self.notes.drifts + count,
            drifted=kept.now() if count else self.notes.drifted,
        )
        for one in fresh:
            self.site.say("drift", one.what, "warning", component=one.component, diff=one.diff)

    def _decide(self) -> None:
        if self.is_busy():
            return
        wants = self.site.wants(deleted=self._deleted, lost=self._missed >= 2)
        kind = choose(wants, self.memory, self.clock())
        if not kind:
            return
        words = self.site.words_for(kind)
        if self.works.start(kind, words):
            self.site.say("work-begins", _BEGINS[kind], kind=kind)

    def _tell(self) -> None:
        self.teller.tell(self.site.report(self.notes, self.memory, self.works.kind))
        self._save()
        self.notifier.alive(f"{self.notes.standing}{f', {self.works.kind} under way' if self.works.kind else ''}")

    def _save(self) -> None:
        self.site.save(self.notes)


_BEGINS = {
    CONNECT: "the tunnel to the cluster's network is being seen to",
    LEAVE: "the resource is deleted: this machine leaves the cluster",
    UPDATE: "the new configuration is being applied",
    RECOVER: "this node is being recovered",
    REPAIR: "what has changed by hand is being repaired",
}
