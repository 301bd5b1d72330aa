"""Tests of the stored state of the daemon."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aks_flex_node.agent.daemon import daemon_state
from aks_flex_node.agent.daemon.daemon_state import DaemonState
from aks_flex_node.agent.daemon.drift_monitor import Conflicts
from aks_flex_node.agent.provider.poll_result import ProviderState
from tests.hosts.recorded import RecordedHost

FILE = "/var/lib/aks-flex-node/daemon-state.json"
FULL = DaemonState(
    *(ProviderState.THROTTLED, "wait", "since", "asked", "7", "applied", "refused", 3, "drifted", ("a", "b")),
    Conflicts("7", {"/a": (1.0,)}, {"/b": 2.0}),
)


def test_daemon_state_round_trips_and_is_mode_0600() -> None:
    host = RecordedHost()
    daemon_state.write(host, FILE, FULL)
    assert daemon_state.read(host, FILE) == FULL
    entry = host.stat(FILE)
    assert entry
    assert entry.mode == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"drift": 5}', '"text"'])
def test_damaged_daemon_state_reads_as_empty(text: str) -> None:
    assert daemon_state.read(RecordedHost({FILE: text}), FILE) == DaemonState()


@pytest.mark.parametrize(
    "wrong",
    [
        {"drift_count": "many"},
        {"drift_count": None},
        {"provider_state": 5},
        {"provider_state": "Odd"},
        {"message": ["x"]},
        {"conflicts": []},
        {"later": "key"},
    ],
    ids=str,
)
def test_daemon_state_ignores_only_the_malformed_fields(wrong: dict[str, object]) -> None:
    document = {"newest_version": "7", "drift": ["a"], **wrong}
    assert daemon_state.read(RecordedHost({FILE: json.dumps(document)}), FILE) == DaemonState(
        newest_version="7", drift=("a",)
    )


def test_provider_state_timestamp_changes_only_with_the_state() -> None:
    before = replace(DaemonState(), provider_state=ProviderState.CONNECTED, since="2020-01-01T00:00:00Z")
    assert before.with_provider_state(ProviderState.CONNECTED, "again").since == "2020-01-01T00:00:00Z"
    changed = before.with_provider_state(ProviderState.THROTTLED, "slow down")
    assert (changed.provider_state, changed.message) == (ProviderState.THROTTLED, "slow down")
    assert changed.since > "2020-01-01T00:00:00Z"
