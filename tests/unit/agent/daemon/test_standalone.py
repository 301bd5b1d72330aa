"""The daemon of a node that no provider manages: the same controller and jobs, without polls and reports."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.daemon.controller import HEALTH_SECONDS
from aks_flex_node.agent.job_records.job_result import JobKind
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from tests.unit.agent.builders import DATA
from tests.unit.agent.daemon.fakes import OLD, WELL, FakeHost, bundle, eventually, kept, put, settings
from tests.unit.agent.daemon.harness import CHANGED, LOST, WORN, Life, begun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.cluster.node_health import NodeHealth

METRICS = "/srv/metrics/flex.prom"


def standalone(**more: Any) -> dict[str, Any]:
    return {**settings(secret=OLD), "continuousMonitoring": False, "agent": {"metricsFile": METRICS}, **more}


@pytest.fixture
def lives() -> Iterator[Callable[..., Life]]:
    opened: list[Life] = []

    def open_life(sight: NodeHealth = WELL, **more: Any) -> Life:
        opened.append(begun(Life(FakeHost(standalone(**more)), sight=sight)))
        return opened[-1]

    yield open_life
    for life in opened:
        life.host.goes_on.set()
        life.controller.shut_down()


def test_standalone_daemon_neither_polls_nor_reports(lives: Callable[..., Life]) -> None:
    life = lives()
    for _ in range(5):
        life.waits(HEALTH_SECONDS)
    assert (life.provider.polls, life.provider.acts) == (0, [])
    assert life.state.provider_state is ProviderState.STANDALONE
    assert life.looks >= 5


@pytest.mark.parametrize(("policy", "works"), [({}, ["repair"]), ({"driftPolicy": "log"}, [])], ids=str)
def test_standalone_daemon_repairs_drift_by_policy(
    lives: Callable[..., Life], policy: dict[str, str], works: list[str]
) -> None:
    life = lives(**policy)
    life.drift = (CHANGED,)
    life.waits(HEALTH_SECONDS * 20)
    eventually(lambda: life.host.works == works)
    assert life.events("drift") == [CHANGED.description]


def test_standalone_daemon_renews_the_vpn_certificate(lives: Callable[..., Life]) -> None:
    life = lives()
    life.session.drift.vpn_due = True
    life.waits(1)
    eventually(lambda: life.host.works == [JobKind.RENEW_VPN.value])


def test_standalone_daemon_keeps_state_and_metrics(lives: Callable[..., Life]) -> None:
    life = lives()
    assert (kept(life.host, DAEMON_STATE) or {})["provider_state"] == "Standalone"
    assert 'aks_flex_node_provider_state{state="Standalone"} 1' in (life.host.read(METRICS) or b"").decode()


def test_standalone_daemon_ignores_a_leftover_pending_config(lives: Callable[..., Life]) -> None:
    life = lives()
    put(life.host, NEXT_CONFIG, bundle("2", settings(secret=OLD)))
    life.waits(HEALTH_SECONDS)
    assert life.host.works == []


def test_standalone_daemon_finishes_an_interrupted_unbootstrap(lives: Callable[..., Life]) -> None:
    life = lives()
    node_state.write(life.host, f"{DATA}/state.json", NodeState().with_phase(Phase.RESETTING))
    life.waits(1)
    eventually(lambda: life.host.works == ["unbootstrap"])


@pytest.mark.parametrize(("sight", "works"), [(LOST, ["recover"]), (WORN, [])], ids=["lost", "expires soon"])
def test_standalone_daemon_recovers_only_lost_credentials(
    lives: Callable[..., Life], sight: NodeHealth, works: list[str]
) -> None:
    life = lives(sight)
    for _ in range(3):
        life.waits(HEALTH_SECONDS)
    eventually(lambda: life.host.works[:1] == works)


def test_session_is_reopened_when_another_command_changes_the_config(lives: Callable[..., Life]) -> None:
    life = lives()
    put(life.host, CURRENT_CONFIG, bundle("", standalone(driftPolicy="log")))
    life.busy = True
    life.waits(1)
    assert not life.events("configuration-changed")  # the other command still runs
    life.busy = False
    life.waits(1)
    assert life.session.node.config.drift_policy == "log"
    assert life.events("configuration-changed")


def test_standalone_node_that_becomes_managed_starts_to_poll(lives: Callable[..., Life]) -> None:
    life = lives()
    put(life.host, CURRENT_CONFIG, bundle("2", settings(secret=OLD)))
    life.waits(1)
    eventually(lambda: life.provider.polls == 1)
    assert life.state.provider_state.value == "Starting"
    put(life.host, CURRENT_CONFIG, json.dumps({"config": standalone()}).encode())
    life.provider.closed.clear()
    life.waits(1)
    assert life.state.provider_state is ProviderState.STANDALONE


def test_credentials_that_work_are_not_recovered(lives: Callable[..., Life]) -> None:
    life = lives(replace(WELL, certificate_seconds=1e7))
    for _ in range(3):
        life.waits(HEALTH_SECONDS)
    assert life.host.works == []
