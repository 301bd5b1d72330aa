"""The daemon of a node that no provider manages: the same controller and jobs, without polls and reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.daemon.controller import HEALTH_SECONDS
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE
from aks_flex_node.agent.provider.poll_result import ProviderState
from tests.unit.agent.daemon.fakes import OLD, FakeHost, bundle, eventually, kept, put, settings
from tests.unit.agent.daemon.harness import CHANGED, LOST, WORN, Life

if TYPE_CHECKING:
    from tests.unit.agent.daemon.harness import StartDaemon

METRICS = "/srv/metrics/flex.prom"


def standalone(**more: Any) -> dict[str, Any]:
    return {**settings(secret=OLD), "continuousMonitoring": False, "agent": {"metricsFile": METRICS}, **more}


@pytest.fixture
def life(start_daemon: StartDaemon) -> Life:
    return start_daemon(host=FakeHost(standalone()))


def test_standalone_daemon_neither_polls_nor_reports(life: Life) -> None:
    for _ in range(5):
        life.waits(HEALTH_SECONDS)
    assert (life.provider.polls, life.provider.acts) == (0, [])
    assert life.state.provider_state is ProviderState.STANDALONE
    assert life.looks >= 5


def test_standalone_daemon_keeps_state_and_metrics(life: Life) -> None:
    assert (kept(life.host, DAEMON_STATE) or {})["provider_state"] == "Standalone"
    assert 'aks_flex_node_provider_state{state="Standalone"} 1' in (life.host.read(METRICS) or b"").decode()


def test_standalone_daemon_ignores_a_leftover_pending_config(life: Life) -> None:
    life.stores_config()
    life.waits(HEALTH_SECONDS)
    assert life.host.works == []


def test_standalone_daemon_repairs_drift(life: Life) -> None:
    life.drift = (CHANGED,)
    life.waits(HEALTH_SECONDS * 20)
    life.runs("repair")
    assert life.events("drift") == [CHANGED.description]


def test_standalone_daemon_recovers_only_lost_credentials(life: Life) -> None:
    life.sight = WORN
    for _ in range(3):
        life.waits(HEALTH_SECONDS)
    assert life.host.works == []
    life.sight = LOST
    for _ in range(2):
        life.waits(HEALTH_SECONDS)
    life.runs("recover")


def test_session_is_reopened_when_another_command_changes_the_config(life: Life) -> None:
    put(life.host, CURRENT_CONFIG, bundle("", standalone(driftPolicy="log")))
    life.busy = True
    life.waits(1)
    assert not life.events("configuration-changed")  # the other command still runs
    life.busy = False
    life.waits(1)
    assert life.session.node.config.drift_policy == "log"
    assert life.events("configuration-changed")


def test_standalone_node_that_becomes_managed_starts_to_poll(life: Life) -> None:
    put(life.host, CURRENT_CONFIG, bundle("2", settings(secret=OLD)))
    life.waits(1)
    eventually(lambda: life.provider.polls == 1)
    assert life.state.provider_state.value == "Starting"
    put(life.host, CURRENT_CONFIG, json.dumps({"config": standalone()}).encode())
    life.provider.closed.clear()
    life.waits(1)
    assert life.state.provider_state is ProviderState.STANDALONE
