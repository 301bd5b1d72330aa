"""Tests of the poller with a real resource provider and tokens of the lab's Entra ID."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.context import ledger_paths
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.recovery import CredentialRecovery
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeDirectory
from aks_flex_rp import instance_lock
from aks_flex_rp.crypto import encryption
from tests.remedies.catalogue import command
from tests.service.agent.daemon.conftest import NEW, OLD, MakeBody
from tests.service.agent.daemon.harness import agent_on, eventually, joined, joined_with_key
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.service_harness import running
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.cli.cli_harness import Person
from tests.unit.agent.builders import MACHINE, SYSTEM_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_node.agent.cluster.readiness import NodeReadiness
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.agent.daemon.harness import Agent
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.fake_clusters import FakeClusters
    from tests.service.rp.api.service_harness import Running


@pytest.fixture
def agent(service: Running, body: MakeBody, name: str, tmp_path: Path) -> Agent:
    return agent_on(tmp_path, joined(service.admin, name, body()), name)


@pytest.mark.parametrize("wait", [50, 0], ids=["held", "by interval"])
def test_poll_delivers_config_change(agent: Agent, service: Running, body: MakeBody, name: str, wait: int) -> None:
    poller = agent.poller(interval=0.1, wait=wait)
    poller.start()
    eventually(lambda: service.service.poll_cache.held_polls if wait else len(agent.heard) >= 2)
    service.admin.put(name, body(maxPods=17))
    eventually(lambda: agent.version() > "1")
    poller.stop()
    waiting = agent.kept()
    assert waiting
    assert waiting["config"]["node"]["maxPods"] == 17
    assert agent.secret() == OLD
    assert agent.host.disk.at(NEXT_CONFIG).stat().st_mode & 0o777 == 0o600
    service.release()


def test_poller_ends_with_latest_of_many_changes(agent: Agent, service: Running, body: MakeBody, name: str) -> None:
    poller = agent.poller(interval=0.05, wait=50)
    poller.start()
    for pods in range(20, 30):
        version = service.admin.put(name, body(maxPods=pods)).properties["configVersion"]
    eventually(lambda: agent.version() == version)
    poller.stop()
    service.release()


def test_poller_recovers_after_provider_outage(
    make_settings: Callable[..., ServiceSettings],
    clusters: FakeClusters,
    body: MakeBody,
    name: str,
    tmp_path: Path,
) -> None:
    made = make_settings()
    with running(made, clusters, Recording()) as first:
        agent = agent_on(tmp_path, joined(first.admin, name, body()), name)
        poller = agent.poller(interval=0.05, wait=50)
        poller.start()
        eventually(lambda: first.service.poll_cache.held_polls)
    eventually(lambda: agent.standing() is ProviderState.UNREACHABLE)
    assert "refused the connection" in agent.heard[-1].message
    with running(made, clusters, Recording()) as second:
        eventually(lambda: agent.standing() is ProviderState.CONNECTED)
        assert agent.kept() is None
        second.admin.put(name, body(maxPods=19))
        eventually(lambda: agent.version() > "1")
        poller.stop()
        second.release()


def test_deleted_resource_is_reported_without_any_change(agent: Agent, service: Running, name: str) -> None:
    assert agent.asks().state is ProviderState.CONNECTED
    service.admin.delete(name)
    verdict = agent.asks()
    assert verdict.state is ProviderState.DELETED
    assert "ResourceNotFound" in verdict.message
    assert agent.kept() is None


def test_missing_cluster_is_not_reported_as_deleted_resource(
    make_settings: Callable[..., ServiceSettings],
    clusters: FakeClusters,
    body: MakeBody,
    name: str,
    tmp_path: Path,
) -> None:
    made = make_settings()
    with running(made, clusters, Recording()) as first:
        agent = agent_on(tmp_path, joined(first.admin, name, body()), name)
    empty = type(clusters)({})
    with running(made, empty, Recording()):
        assert agent.provider.poll("", 0).state is ProviderState.NO_CLUSTER
        assert agent.asks().state is not ProviderState.DELETED
    assert agent.kept() is None


def test_resource_of_another_identity_is_not_authorized(
    agent: Agent, service: Running, cloud: Cloud, body: MakeBody, name: str
) -> None:
    other = cloud.directory.service_principal("other", NEW)
    told = body(NEW)
    told["properties"]["azureAuth"]["servicePrincipal"]["clientId"] = other.client_id
    service.admin.put(name, told)
    assert agent.asks().state is ProviderState.FORBIDDEN
    assert agent.kept() is None


def test_poll_with_disabled_identity_reports_sign_in_failure(
    agent: Agent, cloud: Cloud, identity: EntraPrincipal
) -> None:
    cloud.directory.change(identity, enabled=False)
    assert agent.asks().state is ProviderState.SIGN_IN_FAILED
    assert OLD not in str(agent.heard)


def test_new_secret_is_fetched_with_old_one_and_verified(
    agent: Agent,
    service: Running,
    cloud: Cloud,
    identity: EntraPrincipal,
    body: MakeBody,
    name: str,
) -> None:
    assert agent.asks().is_ok
    cloud.directory.change(identity, secret=NEW, older_secrets=(OLD,))
    service.admin.put(name, body(NEW))
    assert agent.asks().changed
    assert (agent.secret(), agent.refused) == (NEW, "")
    cloud.directory.change(identity, secret=NEW)
    agent.provider.tokens.invalidate()
    assert agent.asks().is_ok, "the secret that waits works while the one in effect does not"


def test_report_of_an_agent_one_version_newer_is_accepted(agent: Agent, service: Running, name: str) -> None:
    agent.source.report_status({"agentVersion": "0.1.0", "driftCount": 4, "fieldOfNextVersion": "x"})
    shown = service.admin.get(name).properties["status"]
    assert (shown["agentVersion"], shown["driftCount"]) == ("0.1.0", 4)


class Came:
    """Simulates a kubelet that registers as soon as it has a token."""

    def wait_registered(self) -> None: ...

    def wait_ready(self, seen: Callable[[Any], None]) -> None: ...


@pytest.fixture
def agent_with_key(service: Running, body: MakeBody, name: str, tmp_path: Path) -> Agent:
    return joined_with_key(tmp_path, service.admin, name, body())


def test_node_without_certificate_requests_bootstrap_token(agent_with_key: Agent, name: str) -> None:
    agent = agent_with_key
    before = agent.kept(CURRENT_CONFIG)
    assert before
    for folder in (*SYSTEM_FOLDERS, "/var/lib/kubelet", "/etc/kubernetes"):
        agent.host.apply(MakeDirectory(folder))
    config = agent.provider.config
    engine = Engine(agent.host, config, MACHINE, Ledger(agent.host, ledger_paths(config)), EventLog())
    lost = lambda: NodeHealth(has_certificate=False)  # noqa: E731
    outcome = CredentialRecovery(engine, agent.source, cast("NodeReadiness", Came()), lost).run()
    assert (outcome.result, outcome.reason) == (JobStatus.DONE, "Recovered"), outcome
    after = agent.kept(CURRENT_CONFIG)
    assert after
    token = after["config"]["azure"]["bootstrapToken"]["token"]
    assert token != before["config"]["azure"].get("bootstrapToken", {}).get("token")
    assert after["config"]["azure"]["servicePrincipal"] == before["config"]["azure"]["servicePrincipal"]
    assert after["configVersion"] == before["configVersion"]
    assert token not in f"{outcome}"
    written = [path for path in (agent.host.disk.root / "var/lib/kubelet").rglob("*") if path.is_file()]
    assert any(token.encode() in path.read_bytes() for path in written), f"{name} has no kubeconfig with its token"
    assert all(path.stat().st_mode & 0o077 == 0 for path in written if token.encode() in path.read_bytes())


def types(service: Running, words: list[str]) -> None:
    """Runs a command of a remedy where the resource provider runs."""
    assert words[0] == "aks-flex-rp"
    made = service.service.settings
    with instance_lock.exclusive(made.state_dir) as place:
        keys = tuple(each.id for each in encryption.list_keys(made.keys, {}))
        place.publish(instance_lock.RunningInstance(made.origin, made.host, made.port, 1, keys))
        Person(service.room).does(*words[1:], "--cluster", str(PLANT))


@pytest.mark.remedy("credential-not-delivered")
def test_bootstrap_token_is_delivered_after_the_resource_is_changed(
    agent_with_key: Agent, service: Running, body: MakeBody, name: str
) -> None:
    changed = body()
    changed["properties"]["kubernetesAuth"] = {"useAzureAuth": True}
    assert service.admin.put(name, changed).status == 200
    with pytest.raises(FlexError) as caught:
        agent_with_key.source.issue_bootstrap_token()
    assert (caught.value.name, caught.value.retryable) == ("credential-not-delivered", True)

    types(service, command("credential-not-delivered", "aks-flex-rp node update", NAME=name))
    assert agent_with_key.source.issue_bootstrap_token()
