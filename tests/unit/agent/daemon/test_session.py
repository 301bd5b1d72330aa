"""Tests of what a session of the daemon records of polls and drift, and of what persists after it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.daemon import daemon_state
from aks_flex_node.agent.daemon.daemon_state import DaemonState
from aks_flex_node.agent.daemon.drift_monitor import MAX_REPAIRS, Conflicts
from aks_flex_node.agent.daemon.scheduler import JobHistory
from aks_flex_node.agent.daemon.session import PollEvent, open_session
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA
from tests.unit.agent.daemon.fakes import (
    OLD,
    FakeHost,
    FakeProvider,
    Quiet,
    StillMonitor,
    StillNode,
    bundle,
    engine_of,
    put,
    settings,
)
from tests.unit.agent.daemon.harness import CHANGED, GOOD, PATH, newest_version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.daemon.session import ControllerEvent, Session


@dataclass
class Machine:
    """A machine on which sessions are opened one after another."""

    host: FakeHost = field(default_factory=FakeHost)
    provider: FakeProvider = field(default_factory=FakeProvider)
    events: list[ControllerEvent] = field(default_factory=list)
    opened: list[Session] = field(default_factory=list)

    def session(self) -> Session:
        node = StillNode(engine_of(self.host), cast("ApiClient", Quiet()), "edge-1", self.provider.real, lambda: 1e9)
        self.opened.append(open_session(node, self.events.append, StillMonitor))
        return self.opened[-1]


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.provider.close()
    for session in made.opened:
        session.close()


def poll(session: Session, result: PollResult, problem: str | None = None) -> None:
    session.record_poll(PollEvent(result, problem))


def test_only_a_good_poll_is_recorded_as_the_last_contact(machine: Machine) -> None:
    session = machine.session()
    poll(session, PollResult(ProviderState.UNREACHABLE, "No route."))
    assert (session.state.last_answer, session.state.newest_version) == ("", "")
    poll(session, GOOD)
    assert session.state.last_answer
    assert session.state.newest_version == newest_version_of(session) == "1"


def test_a_problem_with_new_credentials_stays_until_it_is_withdrawn(machine: Machine) -> None:
    session = machine.session()
    poll(session, GOOD, problem="Entra does not know that secret.")
    poll(session, GOOD)
    assert session.state.credentials_problem == "Entra does not know that secret."
    poll(session, GOOD, problem="")
    assert session.state.credentials_problem == ""


def test_drift_is_described_as_it_is_and_counted_when_it_is_new(machine: Machine) -> None:
    session = machine.session()
    session.drift.found = (CHANGED,)
    session.record_drift((CHANGED,))
    first = session.state
    assert (first.drift, first.drift_count) == ((CHANGED.description,), 1)
    assert first.last_drift

    session.record_drift(())
    assert session.state == first, "it is still the same drift"

    session.drift.found = ()
    session.record_drift(())
    assert (session.state.drift, session.state.drift_count, session.state.last_drift) == ((), 1, first.last_drift)


def reopen_after_a_conflict(machine: Machine, config: bytes | None = None) -> Session:
    """Opens a session after one that gave up a repair."""
    session = machine.session()
    session.drift.found = (CHANGED,)
    session.record_drift((CHANGED,))
    for _ in range(MAX_REPAIRS):
        session.drift.begin_repair()
        session.drift.end_repair()
    session.save()
    if config:
        put(machine.host, CURRENT_CONFIG, config)
    after = machine.session()
    after.drift.found = (CHANGED,)
    return after


def test_a_new_session_continues_with_the_stored_state_and_conflicts(machine: Machine) -> None:
    after = reopen_after_a_conflict(machine)
    assert (after.state.drift, after.state.drift_count) == ((CHANGED.description,), 1)
    assert after.drift.conflicting_subjects == (PATH,), "and is left alone on"


def test_another_configuration_is_reason_to_repair_everything_again(machine: Machine) -> None:
    after = reopen_after_a_conflict(machine, bundle("2", settings(secret=OLD)))
    assert after.drift.conflicting_subjects == ()
    assert after.drift.repairable_subjects == {PATH}


def test_a_configuration_that_waits_is_the_newest_version_after_a_restart(machine: Machine) -> None:
    put(machine.host, NEXT_CONFIG, bundle("2", settings(secret=OLD)))
    assert newest_version_of(machine.session()) == "2"


@pytest.mark.parametrize(
    ("stored", "update", "shown"),
    [
        ({"phase": "NodeJoined", "applied": "2026-01-02T00:00:00Z"}, "", "2026-01-02T00:00:00Z"),
        ({"phase": "NodeJoined", "applied": "2026-01-02T00:00:00Z"}, "2026-01-03T00:00:00Z", "2026-01-03T00:00:00Z"),
        ({"phase": "NodeJoined", "applied": "2026-01-04T00:00:00Z"}, "2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z"),
        ({"phase": "NodeFailed", "since": "2026-01-01T00:00:00Z"}, "", ""),
    ],
    ids=str,
)
def test_managed_node_reports_its_applied_config_from_the_join_on(
    machine: Machine, stored: dict[str, str], update: str, shown: str
) -> None:
    put(machine.host, f"{DATA}/state.json", json.dumps(stored).encode())
    put(machine.host, DAEMON_STATE, json.dumps({"last_applied": update}).encode())
    report = machine.session().report(JobHistory.empty(), None)
    assert (report["appliedConfigVersion"], report.get("lastConfigApplied", "")) == ("1", shown)


FULL = DaemonState(
    *(ProviderState.THROTTLED, "wait", "since", "asked", "7", "applied", "refused", 3, "drifted", ("a", "b")),
    Conflicts("7", {"/a": (1.0,)}, {"/b": 2.0}),
)


def test_daemon_state_round_trips_and_is_mode_0600() -> None:
    host = RecordedHost()
    daemon_state.STATE.write(host, FULL)
    assert daemon_state.read(host) == FULL
    assert host.mode_of(DAEMON_STATE) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"drift": 5}', '"text"'])
def test_damaged_daemon_state_reads_as_empty(text: str) -> None:
    assert daemon_state.read(RecordedHost({DAEMON_STATE: text})) == DaemonState()


@pytest.mark.parametrize(
    "wrong",
    [
        {"drift_count": "many"},
        {"drift_count": None},
        {"provider_state": 5},
        {"provider_state": "Odd"},
        {"message": ["x"]},
        {"conflicts": []},
        {"conflicts": {"configuration": "7", "repaired": {"a": 1}, "given_up": {}}},
        {"later": "key"},
    ],
    ids=str,
)
def test_daemon_state_ignores_only_the_malformed_fields(wrong: dict[str, object]) -> None:
    document = {"newest_version": "7", "drift": ["a"], **wrong}
    assert daemon_state.read(RecordedHost({DAEMON_STATE: json.dumps(document)})) == DaemonState(
        newest_version="7", drift=("a",)
    )


def test_provider_state_timestamp_changes_only_with_the_state() -> None:
    before = replace(DaemonState(), provider_state=ProviderState.CONNECTED, since="2020-01-01T00:00:00Z")
    assert before.with_provider_state(ProviderState.CONNECTED, "again").since == "2020-01-01T00:00:00Z"
    changed = before.with_provider_state(ProviderState.THROTTLED, "slow down")
    assert (changed.provider_state, changed.message) == (ProviderState.THROTTLED, "slow down")
    assert changed.since > "2020-01-01T00:00:00Z"
