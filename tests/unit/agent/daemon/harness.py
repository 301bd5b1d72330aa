"""One life of the agent that stays, step by step, on a machine and by a clock of the test's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.daemon.controller import Controller, FilesChanged, PollEvent, SystemdNotifier
from aks_flex_node.agent.drift.detection import Drift
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from tests.unit.agent.daemon.fakes import WELL, FakeHost, FakeProvider, StillSite, eventually, site_on

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.node_health import NodeHealth

GOOD = PollResult(ProviderState.FOLLOWING)
GONE = PollResult(ProviderState.DELETED, "ResourceNotFound: gone (status 404)")
NEWS = PollResult(ProviderState.FOLLOWING, changed=True, version="2")
PORTAL = PollResult(ProviderState.NOT_THE_PROVIDER, "The answer was a login page.")
LOST = replace(WELL, has_certificate=False)
PATH = "/etc/cni/net.d/10-flex.conflist"
CHANGED = Drift("cni", PATH, f"{PATH} has other content", "-wanted\n+found")


@dataclass
class Life:
    """One life of the agent, step by step, on a machine and by a clock of the test's."""

    host: FakeHost = field(default_factory=FakeHost)
    provider: FakeProvider = field(default_factory=FakeProvider)
    now: float = 1000.0
    busy: bool = False
    sight: NodeHealth = WELL
    drift: tuple[Drift, ...] = ()
    looks: int = 0
    drift_looks: int = 0
    said: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Controller(self.open, SystemdNotifier(""), is_busy=lambda: self.busy, clock=lambda: self.now)

    def open(self) -> StillSite:
        life, made = self, site_on(self.host, self.provider)

        class Watched(StillSite):
            def refresh_health(self) -> None:
                life.looks += 1
                self.health = life.sight

            def detect_drift(self) -> tuple[Drift, ...]:
                life.drift_looks += 1
                self.differs = life.drift
                return super().detect_drift()

        made.engine.events = EventLog(watch=self.said.append)
        return Watched(made.engine, made.api, made.node, made.provider, now=lambda: 1e9 + self.now)

    def hears(self, verdict: PollResult, after: float = 0.0) -> None:
        self.now += after
        self.follower.events.put(PollEvent(verdict, ""))
        self.steps()

    def steps(self) -> None:
        """Whatever is in the queue or due happens."""
        assert self.follower.reconcile()

    def waits(self, seconds: float) -> None:
        """So much time goes by, in which files may have been touched."""
        self.now += seconds
        self.follower.events.put(FilesChanged(frozenset()))
        self.steps()

    def ends_work(self) -> None:
        """The outcome of the work that was begun comes, and is heard."""
        eventually(lambda: not self.follower.events.empty())
        self.steps()

    @property
    def working(self) -> str:
        return self.follower.works.running

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [body for action, body in self.provider.acts if action == "reportStatus"]

    def condition(self, kind: str) -> dict[str, str]:
        report = self.follower.site.report(self.follower.notes, self.follower.history, self.working)
        found: list[dict[str, str]] = report["conditions"]
        return next(each for each in found if each["type"] == kind)

    def events(self, kind: str) -> list[str]:
        return [each["message"] for each in self.said if each["event"] == kind]


def begun(life: Life) -> Life:
    life.follower.start()
    life.waits(0)
    return life


def interval(life: Life) -> float:
    return float(life.follower.site.config.provider.poll_seconds)
