"""One run of the daemon, step by step, with a simulated machine and clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from aks_flex_node.agent.config_sources.source import LocalSource
from aks_flex_node.agent.daemon.controller import Controller
from aks_flex_node.agent.daemon.session import FilesChanged, PollEvent, open_session
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier
from aks_flex_node.agent.drift.detection import Drift
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.paths import NEXT_CONFIG
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from tests.unit.agent.daemon.fakes import (
    OLD,
    WELL,
    FakeHost,
    FakeProvider,
    Quiet,
    StillMonitor,
    StillNode,
    bundle,
    engine_of,
    eventually,
    put,
    settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.agent.daemon.daemon_state import DaemonState
    from aks_flex_node.agent.daemon.poller import Poller
    from aks_flex_node.agent.daemon.session import ControllerEvent, Session
    from aks_flex_node.agent.job_records.job_result import JobKind, JobResult

StartDaemon: TypeAlias = "Callable[..., Life]"

GOOD = PollResult(ProviderState.CONNECTED)
GONE = PollResult(ProviderState.DELETED, "ResourceNotFound: gone (status 404)")
NEWS = PollResult(ProviderState.CONNECTED, changed=True, version="2")
PORTAL = PollResult(ProviderState.UNEXPECTED_RESPONSE, "The answer was a login page.")
LOST = replace(WELL, has_certificate=False)
WORN = replace(WELL, certificate_seconds=WELL.certificate_lifetime * 0.05)  # valid, but not renewed in time
PATH = "/etc/cni/net.d/10-flex.conflist"
CHANGED = Drift("cni", PATH, f"{PATH} has different content", "-wanted\n+found")


@dataclass
class Life:
    """One run of the daemon, step by step, with a simulated machine and clock."""

    host: FakeHost = field(default_factory=FakeHost)
    provider: FakeProvider = field(default_factory=FakeProvider)
    source: ConfigSource = field(default_factory=LocalSource)  # of a node that the provider does not manage
    now: float = 1000.0
    jump: float = 0.0  # change of the wall clock
    busy: bool = False
    sight: NodeHealth = WELL
    drift: tuple[Drift, ...] = ()
    looks: int = 0
    drift_looks: int = 0
    said: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def controller(self) -> Controller:
        """Created on first use: before that, the test prepares the machine."""
        return Controller(self.open, SystemdNotifier(""), is_busy=lambda: self.busy, clock=lambda: self.now)

    @property
    def session(self) -> Session:
        return self.controller.session

    @property
    def state(self) -> DaemonState:
        return self.session.state

    def open(self, on_event: Callable[[ControllerEvent], None]) -> Session:
        life, engine = self, engine_of(self.host)

        class Node(StillNode):
            def check_health(self) -> NodeHealth:
                life.looks += 1
                return life.sight

        class Monitor(StillMonitor):
            def check(self) -> tuple[Drift, ...]:
                life.drift_looks += 1
                self.differs = life.drift
                return super().check()

        engine.events = EventLog(watch=self.said.append)
        wall_clock = lambda: 1e9 + self.now + self.jump  # noqa: E731
        source = self.provider.real if engine.config.continuous_monitoring else self.source
        node = Node(engine, cast("ApiClient", Quiet()), "edge-1", source, wall_clock)
        return open_session(node, on_event, Monitor)

    def hears(self, verdict: PollResult, after: float = 0.0) -> None:
        self.now += after
        self.notices(PollEvent(verdict, ""))

    def notices(self, event: ControllerEvent) -> None:
        self.controller.events.put(event)
        self.steps()

    def stores_config(self, version: str = "2") -> None:
        put(self.host, NEXT_CONFIG, bundle(version, settings(secret=OLD)))

    def receives_config(self, version: str = "2", outcome: JobResult | None = None) -> None:
        """Lets a configuration arrive, whose update ends with this result."""
        if outcome:
            self.host.outcomes = [outcome]
        self.stores_config(version)
        self.hears(replace(NEWS, version=version))

    def steps(self) -> None:
        """Processes all queued and due events."""
        assert self.controller.reconcile()

    def waits(self, seconds: float) -> None:
        """Advances the clock and reports possible file changes."""
        self.now += seconds
        self.notices(FilesChanged(frozenset()))

    def changes_policy(self) -> None:
        self.notices(FilesChanged(frozenset({POLICY_FILE})))
        while not self.controller.events.empty():
            self.steps()

    def runs(self, *jobs: str) -> None:
        """Waits until exactly these jobs have been started since the beginning."""
        eventually(lambda: self.host.works == list(jobs))

    def ends_work(self) -> None:
        """Waits for the result of the running job and processes it."""
        eventually(lambda: not self.controller.events.empty())
        self.steps()

    @property
    def working(self) -> JobKind | None:
        return self.controller.runner.running

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [body for action, body in self.provider.acts if action == "reportStatus"]

    def condition(self, kind: str) -> dict[str, str]:
        report = self.session.report(self.controller.history, self.working)
        found: list[dict[str, str]] = report["conditions"]
        return next(each for each in found if each["type"] == kind)

    def events(self, kind: str) -> list[str]:
        return [each["message"] for each in self.said if each["event"] == kind]


def begun(life: Life) -> Life:
    life.controller.start()
    life.waits(0)
    return life


def poller_of(session: Session) -> Poller:
    assert session.connection
    return session.connection.poller


def newest_version_of(session: Session) -> str:
    assert session.connection
    return session.connection.receiver.newest_version


def interval(life: Life) -> float:
    return float(life.session.node.config.provider.poll_seconds)
