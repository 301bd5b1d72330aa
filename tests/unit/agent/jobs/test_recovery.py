"""Tests of credential recovery. Tests with a real provider cover the token itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.bootstrap.bootstrap_token import renew_token, token_renewal
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.recovery import CredentialRecovery
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import MakeLink, Remove, RestartUnit, SetAside, WriteFile
from tests.unit.agent.builders import config_of, engine_on
from tests.unit.agent.config.builders import load_plain
from tests.unit.agent.daemon.fakes import READY, WELL, FakeHost, FakeProvider

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.cluster.readiness import NodeReadiness

RESTART = RestartUnit("kubelet.service")


@dataclass
class FakeProof:
    error: ClusterError | None = None
    asked: list[str] = field(default_factory=list)

    def wait_registered(self) -> ClusterNode:
        self.asked.append("registered")
        if self.error:
            raise self.error
        return READY

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        self.asked.append("ready")
        seen(READY)
        return READY


@dataclass
class Scene:
    sight: NodeHealth
    provider: FakeProvider = field(default_factory=FakeProvider)
    proof: FakeProof = field(default_factory=FakeProof)
    host: FakeHost = field(default_factory=FakeHost)

    def recovery(self) -> CredentialRecovery:
        config = load_plain((self.host.read(CURRENT_CONFIG) or b"").decode(), CURRENT_CONFIG).config
        engine = engine_on(self.host, config)
        return CredentialRecovery(engine, self.provider.real, cast("NodeReadiness", self.proof), lambda: self.sight)


def test_recovery_changes_nothing_on_a_healthy_node() -> None:
    scene = Scene(WELL)
    assert scene.recovery().run().result == JobStatus.DONE
    assert (scene.provider.acts, scene.host.done) == ([], [])


def test_deleted_node_is_registered_again_with_its_certificate() -> None:
    scene = Scene(replace(WELL, node=None, node_missing=True))
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason) == (JobStatus.DONE, "Recovered")
    assert "its Node was deleted" in outcome.message
    assert (scene.provider.acts, scene.proof.asked) == ([], ["registered", "ready"])
    assert RESTART in scene.host.done


@pytest.mark.parametrize("standing", [ProviderState.UNREACHABLE, ProviderState.SIGN_IN_FAILED, ProviderState.DELETED])
def test_recovery_without_a_new_token_changes_nothing_and_is_retried(standing: ProviderState) -> None:
    scene = Scene(replace(WELL, has_certificate=False))
    scene.provider.answers["regenerateToken"] = ProviderRequestError(PollResult(standing, "Not now."))
    before = scene.host.read(CURRENT_CONFIG)
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason, outcome.retryable) == (JobStatus.FAILED, standing.value, True)
    assert "Not now." in outcome.message
    assert (scene.host.done, scene.host.read(CURRENT_CONFIG)) == ([], before)


def test_join_says_why_it_got_no_new_token() -> None:
    scene, notes = Scene(WELL), list[str]()
    scene.provider.answers["regenerateToken"] = ProviderRequestError(
        PollResult(ProviderState.UNREACHABLE, "Not now.")
    )
    assert not renew_token(scene.recovery().engine, scene.provider.real, notes.append)
    assert notes == ["the bootstrap token is used up, and no new one was issued: Not now."]


@pytest.mark.parametrize(("monitored", "renews"), [(True, True), (False, False)])
def test_only_a_managed_node_renews_its_token(monitored: bool, renews: bool) -> None:
    config = config_of({"continuousMonitoring": monitored})
    assert bool(token_renewal(engine_on(FakeHost(), config), "edge-1", print)) is renews


@pytest.mark.parametrize("url", ["", "http://provider.example/x", "nonsense"])
def test_recovery_with_an_invalid_config_url_changes_nothing(url: str) -> None:
    scene = Scene(replace(WELL, has_kubeconfig=False))
    scene.provider.answers["regenerateToken"] = {"configUrl": url}
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.retryable, scene.host.done) == (JobStatus.FAILED, True, [])


def test_recovery_failure_reports_the_cause() -> None:
    scene = Scene(replace(WELL, node_missing=True), proof=FakeProof(ClusterError("node-not-registered", "It hangs.")))
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason, outcome.message) == (JobStatus.FAILED, "node-not-registered", "It hangs.")
    assert outcome.retryable


class WithToken(CredentialRecovery):
    """A recovery that already has its new token."""

    def _renew_join_credentials(self) -> None: ...


WORN = replace(WELL, certificate_seconds=WELL.certificate_lifetime * 0.05)


def test_expiring_certificate_is_kept_when_no_new_token_is_available() -> None:
    assert WORN.recovery_reason == "its certificate expires soon and was not renewed"
    assert WORN.lost_reason == ""  # it still works
    scene = Scene(WORN)
    scene.provider.answers["regenerateToken"] = ProviderRequestError(
        PollResult(ProviderState.UNREACHABLE, "Not now.")
    )
    assert scene.recovery().run().result == JobStatus.FAILED
    assert scene.host.done == []  # and nothing is removed without a new token


def test_recovery_restores_the_old_certificate_when_none_is_issued() -> None:
    scene = Scene(WORN, proof=FakeProof(ClusterError("certificate-not-issued", "Nobody approved it.")))
    current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    scene.host.apply(MakeLink(current, "/var/lib/kubelet/pki/kubelet-client-1.pem"))
    scene.host.done.clear()

    outcome = WithToken(**vars(scene.recovery())).run()

    assert (outcome.result, outcome.reason) == (JobStatus.FAILED, "certificate-not-issued")
    entry = scene.host.stat(current)
    assert entry
    assert entry.target == "/var/lib/kubelet/pki/kubelet-client-1.pem"
    assert scene.host.done[-1] == RESTART


def test_damaged_certificate_is_set_aside_before_the_kubelet_starts() -> None:
    scene = Scene(replace(WELL, node=None, has_certificate=False))
    current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    scene.host.apply(WriteFile(current, b"", 0o600))
    scene.host.done.clear()

    assert WithToken(**vars(scene.recovery())).run().result is JobStatus.DONE

    assert scene.host.done.index(SetAside(current)) < scene.host.done.index(RESTART)
    assert scene.host.stat(current) is None


def by_azure(auth: str) -> FakeHost:
    host = FakeHost()
    document = json.loads((host.read(CURRENT_CONFIG) or b"").decode())
    document["config"]["node"]["kubelet"]["auth"] = auth
    host.apply(WriteFile(CURRENT_CONFIG, json.dumps(document).encode(), 0o600))
    host.done.clear()
    return host


@pytest.mark.parametrize("auth", ["exec", "certificate"])
def test_recovery_with_azure_identity_needs_no_bootstrap_token(auth: str) -> None:
    lost = replace(WELL, node=None, credentials_rejected=True, uses_tokens=auth == "exec")
    scene = Scene(lost, host=by_azure(auth))
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason) == (JobStatus.DONE, "Recovered")
    assert [name for name, _ in scene.provider.acts] == ["reportStatus"]  # which restores its access
    assert Remove("/var/lib/kubelet/azure-token.json") in scene.host.done
    assert (Remove("/var/lib/kubelet/pki/kubelet-client-current.pem") in scene.host.done) == (auth == "certificate")
    assert RESTART in scene.host.done
