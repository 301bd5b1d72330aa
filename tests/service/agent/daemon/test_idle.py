"""Counts what an idle daemon does in twenty minutes of a simulated clock: wake-ups, processes, files that it reads.

CPU time depends on the machine; these numbers do not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent import context
from aks_flex_node.agent.config_sources.source import LocalSource, PollSchedule
from aks_flex_node.agent.daemon.controller import Controller
from aks_flex_node.agent.daemon.drift_monitor import DriftMonitor
from aks_flex_node.agent.daemon.session import PollEvent, open_session
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier
from aks_flex_node.agent.managed_node import ManagedNode
from aks_flex_node.agent.paths import DAEMON_STATE, PUBLIC_STATUS
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.public_status import StatusPublisher
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.host import CommandResult, EntryKind, FileEntry, UnitState
from aks_flex_node.host.system import INVOCATION_LINK
from tests.crash.update_harness import LastingCluster
from tests.damage import harness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.daemon.session import ControllerEvent, Session
    from aks_flex_node.host.actions import Action

MINUTES = 20
POLL_SECONDS = 50.0  # of a long poll without news
INVOCATION = "1" * 32


class CountingHost(harness.DamagedHost):
    """A machine with systemd that counts what is asked of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.counts: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def read(self, path: str) -> bytes | None:
        self.counts["reads"] += 1
        return super().read(path)

    def stat(self, path: str) -> FileEntry | None:
        self.counts["stats"] += 1
        if path.startswith(INVOCATION_LINK):
            active = super().unit(path.removeprefix(INVOCATION_LINK)).active == "active"
            return FileEntry(EntryKind.LINK, target=INVOCATION) if active else None
        return super().stat(path)

    def unit(self, name: str) -> UnitState:
        # The daemon knows by its lock, which is not held in this test, that its own service runs.
        self.counts["processes"] += name != "aks-flex-node.service"
        return super().unit(name)

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        self.counts["processes"] += 1
        if argv[:2] != ("systemctl", "show"):
            return super().query(*argv, seconds=seconds)
        units = [super(CountingHost, self).unit(name) for name in argv[2 : argv.index("-p")]]
        return CommandResult(0, "\n".join(map(shown, units)))

    def apply(self, action: Action) -> None:
        if isinstance(action, WriteFile):
            self.written[action.path] += 1
        super().apply(action)


def shown(unit: UnitState) -> str:
    return (
        f"Id={unit.name}\nLoadState={'loaded' if unit.exists else 'not-found'}\nActiveState={unit.active}\n"
        f"UnitFileState={'enabled' if unit.enabled else ''}\n"
        f"NeedDaemonReload={'yes' if unit.needs_reload else 'no'}\n"
        f"InvocationID={INVOCATION if unit.active == 'active' else ''}\n"
    )


class QuietProvider(LocalSource):
    """A provider without news. Its polls are events of the test."""

    schedule = PollSchedule(30.0, 50)
    accepts_reports = True


class UnwatchedMonitor(DriftMonitor):
    def watch(self, on_change: Callable[[frozenset[str]], None]) -> None: ...


@dataclass
class Idle:
    """A daemon whose node is healthy and whose provider has no news, with a simulated clock."""

    host: CountingHost
    now: float = 1000.0
    wakeups: int = 0
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        publisher = StatusPublisher(lambda: self.now)
        self.controller = Controller(
            self.open, SystemdNotifier(""), publisher, is_busy=lambda: False, clock=lambda: self.now
        )

    def open(self, on_event: Callable[[ControllerEvent], None]) -> Session:
        engine = harness.engine(self.host, context.config_in_effect(self.host))
        cluster = cast("ApiClient", LastingCluster(self.host))
        node = ManagedNode(engine, cluster, "edge-1", QuietProvider(), lambda: 1.8e9 + self.now)
        return open_session(node, on_event, UnwatchedMonitor)

    def passes(self, seconds: float) -> None:
        """Lets time pass: the daemon wakes when something is due, and after each poll."""
        end, polled = self.now + seconds, self.now + POLL_SECONDS
        while self.now < end:
            self.now = min(self.now + self.controller.seconds_until_due, polled)
            event: PollEvent | None = None  # the daemon wakes without an event
            if self.now == polled:
                polled, event = polled + POLL_SECONDS, PollEvent(PollResult(ProviderState.CONNECTED), "")
            self.controller.events.put(cast("ControllerEvent", event))
            self.wakeups += 1
            assert self.controller.reconcile()


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Idle:
    """Returns a daemon after twenty minutes; the first minute, in which it compares everything, is not counted."""
    root = harness.make_node(harness.seed(tmp_path_factory.mktemp("idle") / "node"))
    it = Idle(CountingHost(root))
    it.passes(60)
    it.host.counts.clear()
    it.host.written.clear()
    it.wakeups = 0
    it.passes(60 * MINUTES)
    assert it.controller.runner.running is None, "an idle node needs no job"
    assert it.controller.session.drift.found == ()
    return it


def test_idle_daemon_wakes_at_most_six_times_a_minute(idle: Idle) -> None:
    assert idle.wakeups / MINUTES <= 6


def test_idle_daemon_starts_a_process_only_to_compare_units(idle: Idle) -> None:
    """Two every five minutes: a process costs as much as all the rest of a minute."""
    assert idle.host.counts["processes"] / MINUTES <= 0.5


def test_idle_daemon_reads_few_files(idle: Idle) -> None:
    assert idle.host.counts["reads"] / MINUTES <= 90
    assert idle.host.counts["stats"] / MINUTES <= 160


def test_idle_daemon_writes_only_its_published_status_and_rarely_its_state(idle: Idle) -> None:
    assert set(idle.host.written) <= {PUBLIC_STATUS, DAEMON_STATE}
    assert idle.host.written[PUBLIC_STATUS] <= MINUTES + 1
    assert idle.host.written[DAEMON_STATE] <= MINUTES / 10 + 1
