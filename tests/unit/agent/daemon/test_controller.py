"""Tests of the controller's reactions to events, especially when it must do nothing."""

from __future__ import annotations

import json
import os
import signal
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.daemon.controller import HEALTH_SECONDS, run_controller, wait_until_readable
from aks_flex_node.agent.daemon.lifecycle import CONFLICT_SECONDS
from aks_flex_node.agent.daemon.poller import WATCHDOG_SECONDS
from aks_flex_node.agent.daemon.session import StopRequest
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier
from aks_flex_node.agent.job_records.job_result import JOB_UNIT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.managed_node import ManagedNode
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, PollResult, ProviderState
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import Remove, StartUnit, StopUnit, WriteFile
from tests.unit.agent.builders import DATA
from tests.unit.agent.daemon.fakes import OLD, FakeHost, bundle, eventually, put, settings
from tests.unit.agent.daemon.harness import CHANGED, GONE, GOOD, PORTAL, Life, interval, poller_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.daemon.session import ControllerEvent, Session
    from tests.unit.agent.daemon.harness import StartDaemon


REPLACED = PollResult(ProviderState.REPLACED)


INVALID = ConfigError("config-file-invalid", "It is not JSON.")


def test_two_deleted_results_one_interval_apart_start_unbootstrap(life: Life) -> None:
    life.hears(GONE)
    life.hears(GONE, interval(life) - 1)
    assert not life.working
    life.hears(GONE, 1)
    life.runs("unbootstrap")


def test_controller_exits_without_writing_after_the_node_is_removed(life: Life) -> None:
    for path in (CURRENT_CONFIG, DAEMON_STATE):
        life.host.apply(Remove(path))
    life.controller.events.put(JobResult(JobKind.UNBOOTSTRAP, JobStatus.FAILED))
    assert not life.controller.reconcile()
    assert life.host.stat(DAEMON_STATE) is None


@pytest.mark.parametrize(
    "verdict",
    [PollResult(each) for each in ProviderState if each not in LEAVING_STATES],
    ids=lambda one: str(one.state),
)
def test_no_other_provider_state_starts_a_job_or_changes_the_config(life: Life, verdict: PollResult) -> None:
    for _ in range(50):
        life.hears(verdict, interval(life))
    assert life.host.works == []
    assert life.host.read(CURRENT_CONFIG) == bundle("1", settings(secret=OLD))


def test_replaced_machine_unbootstraps_without_removing_the_node(life: Life) -> None:
    life.hears(REPLACED)
    assert not life.working
    life.hears(REPLACED, interval(life))
    life.runs("unbootstrap")
    assert life.host.job_arguments == [("--keep-node",)]


def test_undecided_conflict_of_machines_unbootstraps_after_ten_minutes(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = {"elsewhere": False}
    monkeypatch.setattr(ManagedNode, "is_another_machine", lambda _: boots["elsewhere"])
    conflict = PollResult(ProviderState.ON_ANOTHER_MACHINE)
    for after in (0, CONFLICT_SECONDS - 1, 1e6):
        life.hears(conflict, after)
        assert not life.working, "the ID of this machine has changed, but the Node is here"
    boots["elsewhere"] = True
    life.hears(conflict, 1)
    life.runs("unbootstrap")
    assert life.host.job_arguments == [("--keep-node",)]


def test_deleted_node_with_unbootstrap_disabled_starts_no_jobs(start_daemon: StartDaemon) -> None:
    life = start_daemon(host=FakeHost(settings(secret=OLD, agent={"unbootstrapOnDelete": False})))
    life.stores_config()
    life.controller.history.record(JobResult(JobKind.UPDATE, JobStatus.FAILED, version="2", retryable=True), life.now)
    for after in (0, interval(life), 1e6):
        life.hears(GONE, after)
    assert life.host.works == []
    life.hears(GOOD)
    life.runs("update")


@pytest.mark.parametrize("state", [ProviderState.DELETED, ProviderState.REPLACED])
@pytest.mark.parametrize("policy", [b"forbid: [unbootstrap]\n", b"forbid: [damaged\n"])
def test_removal_that_the_policy_forbids_is_not_run(life: Life, state: ProviderState, policy: bytes) -> None:
    """A compromised provider or pool deletes the node, or says that it was moved."""
    life.host.apply(WriteFile(POLICY_FILE, policy, 0o644))
    life.hears(PollResult(state))
    for _ in range(3):
        life.hears(PollResult(state), interval(life))
    assert life.host.works == []
    (said,) = life.events("unbootstrap-refused")
    assert "forbids the removal of this node (unbootstrap)" in said


def test_interrupted_unbootstrap_resumes_after_a_daemon_restart(start_daemon: StartDaemon) -> None:
    life = Life()
    node_state.write(life.host, f"{DATA}/state.json", NodeState().with_phase(Phase.RESETTING))
    start_daemon(life).runs("unbootstrap")


def test_each_provider_state_change_is_logged_once(life: Life) -> None:
    for verdict in (GOOD, GOOD, PORTAL, PORTAL, PORTAL, GOOD):
        life.hears(verdict, 30)
    assert life.events("provider-state") == [
        "Connected",
        "UnexpectedResponse: The answer was a login page.",
        "Connected",
    ]


def test_full_disk_does_not_stop_the_daemon_and_is_logged_once(start_daemon: StartDaemon) -> None:
    full = FakeHost(settings(secret=OLD, agent={"metricsFile": "/var/lib/metrics/flex.prom"}))
    full.refuses = lambda action: isinstance(action, WriteFile)
    life = start_daemon(host=full)
    for _ in range(3):
        life.hears(GOOD, HEALTH_SECONDS)
        life.hears(PORTAL, HEALTH_SECONDS)
    assert life.events("disk-full") == ["The disk is full."]
    eventually(lambda: life.reports)
    assert life.reports[-1]["appliedConfigVersion"] == "1"


def test_stuck_poller_is_replaced(life: Life) -> None:
    poller = poller_of(life.session)
    eventually(lambda: poller.is_stuck or life.provider.polls)
    life.waits(WATCHDOG_SECONDS * 10)
    assert poller_of(life.session) is poller  # not overdue by its own clock
    poller.clock = lambda: 1e12
    life.waits(1)
    assert poller_of(life.session) is not poller
    assert life.events("poller-hangs")


@pytest.mark.parametrize("jump", [86400.0, -86400.0, 1e9, -1e9])
def test_wall_clock_jump_does_not_affect_the_controller(life: Life, jump: float) -> None:
    """Only displayed times and maintenance windows use the wall clock."""
    before, life.jump = life.looks, jump
    for _ in range(4):
        life.hears(GOOD, HEALTH_SECONDS)
    assert (life.looks - before, life.host.works) == (4, [])


def test_damaged_daemon_state_file_does_not_stop_the_daemon(start_daemon: StartDaemon) -> None:
    life = Life()
    put(life.host, DAEMON_STATE, b'{"drift_count": "many", "drift": [1], "conflicts": [], "provider_state": {}}')
    life.host.apply(StartUnit(JOB_UNIT))
    life.drift = (CHANGED,)
    start_daemon(life).hears(GOOD)
    assert json.loads(life.host.read(DAEMON_STATE) or b"")["provider_state"] == "Connected"
    life.host.apply(StopUnit(JOB_UNIT))


def raise_invalid() -> None:
    raise INVALID


@pytest.fixture
def _signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_the_opening_of_the_first_session_stops_the_daemon(life: Life, number: signal.Signals) -> None:
    def interrupted(on_event: Callable[[ControllerEvent], None]) -> Session:
        os.kill(os.getpid(), number)
        return life.open(on_event)

    looks = life.looks
    run_controller(interrupted, SystemdNotifier(""))
    assert life.looks == looks


class Notices(SystemdNotifier):
    def __init__(self) -> None:
        super().__init__("")
        self.said: list[str] = []

    def alive(self, status: str) -> None:
        self.said.append(status)


def test_daemon_waits_for_a_readable_configuration_instead_of_failing() -> None:
    notifier = Notices()
    events: SimpleQueue[ControllerEvent] = SimpleQueue()
    faults = [INVALID, INVALID]

    def check() -> None:
        if faults:
            raise faults.pop()

    assert wait_until_readable(check, notifier, events, 0.01)
    assert notifier.said == ["degraded: It is not JSON."] * 2


def test_daemon_that_waits_for_its_configuration_can_be_stopped() -> None:
    events: SimpleQueue[ControllerEvent] = SimpleQueue()
    events.put(StopRequest())
    assert not wait_until_readable(raise_invalid, Notices(), events, 60.0)
