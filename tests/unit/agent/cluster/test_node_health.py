"""Tests of node health, from the machine and from the cluster."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.cluster.node_health import NodeHealth, check_node_health, has_server
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import Remove, StartUnit, WriteFile
from aks_flex_node.host.host import CommandResult, UnitState
from tests.client_certificates import client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import Answers, config_of
from tests.unit.agent.test_certificates import UTC

CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
KUBECONFIG = "/var/lib/kubelet/kubeconfig"
END = datetime.datetime(2030, 1, 1, tzinfo=UTC)
NODE = {"metadata": {"name": "edge-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
JOURNAL: tuple[str, ...] = (
    "journalctl",
    "--unit",
    "kubelet.service",
    "--lines",
    "60",
    "--output",
    "cat",
    "--no-pager",
)


def machine() -> RecordedHost:
    answers = {JOURNAL: CommandResult(0, "I0101 fine\nE0101 00:00:00.0 1 run.go:1] it broke\n")}
    host = RecordedHost({CERTIFICATE: client_pem(END), KUBECONFIG: "server: x"}, answers)
    for name in ("containerd.service", "kubelet.service"):
        host.apply(StartUnit(name))
    return host


def seen(host: RecordedHost, answer: Any = NODE, left: float = 86400.0) -> NodeHealth:
    api = Answers({("GET", "/api/v1/nodes/edge-1"): [answer]})
    return check_node_health(host, config_of(), "edge-1", api.client, now=lambda: END.timestamp() - left)


def test_healthy_node_has_no_lost_reason_and_no_failed_services() -> None:
    sight = seen(machine())
    assert (sight.lost_reason, sight.failed_services, sight.certificate_seconds) == ("", (), 86400.0)
    assert sight.node
    assert sight.node.ready


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (ApiStatusError(404, "NotFound", ""), "its Node was deleted from the cluster"),
        (ApiStatusError(401, "Unauthorized", ""), "the cluster no longer accepts its certificate"),
        (ApiStatusError(403, "Forbidden", ""), ""),
        (ApiStatusError(500, "InternalError", "etcd"), ""),
        (ApiStatusError(503, "ServiceUnavailable", ""), ""),
        (ClusterError("api-server-unreachable", "It cannot be reached."), ""),
        (ClusterError("api-server-untrusted", "Another certificate."), ""),
    ],
    ids=str,
)
def test_node_is_lost_only_on_404_or_401_from_the_cluster(answer: Exception, lost: str) -> None:
    assert seen(machine(), answer).lost_reason == lost


def test_node_health_contains_the_api_error() -> None:
    sight = seen(machine(), ClusterError("api-server-unreachable", "It cannot be reached."))
    assert (sight.node, sight.api_error) == (None, "It cannot be reached.")


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        (CERTIFICATE, "its certificate is missing or damaged"),
        (KUBECONFIG, "the kubelet's kubeconfig is missing or damaged"),
    ],
)
def test_missing_credential_file_is_a_lost_reason(path: str, lost: str) -> None:
    host = machine()
    host.apply(Remove(path))
    assert seen(host).lost_reason == lost
    for damaged in (b"", b"\0" * 900, client_pem().encode()[:700]):  # a lost power supply leaves such files
        host.apply(WriteFile(path, damaged, 0o600))
        assert seen(host).lost_reason == lost


def test_expired_certificate_is_a_lost_reason_without_a_cluster_request() -> None:
    sight = seen(machine(), AssertionError("nobody should be asked"), left=-1.0)
    assert (sight.lost_reason, sight.expired, sight.expiring) == ("its certificate has expired", True, True)


def test_late_certificate_renewal_is_expiring_but_not_lost() -> None:
    life = (END - datetime.datetime(1990, 1, 1, tzinfo=UTC)).total_seconds()
    assert not seen(machine(), left=0.1 * life).expiring
    late = seen(machine(), left=0.07 * life)
    assert (late.expiring, late.lost_reason) == (True, "")


def seen_with(kubelet: UnitState) -> NodeHealth:
    answers = {JOURNAL: CommandResult(0, "I0101 fine\nE0101 00:00:00.0 1 run.go:1] it broke\n")}
    running = UnitState("containerd.service", exists=True, active="active")
    units = {"kubelet.service": kubelet, "containerd.service": running}
    return seen(RecordedHost({CERTIFICATE: client_pem(END), KUBECONFIG: "server: x"}, answers, units))


@pytest.mark.parametrize(
    "unit",
    [
        UnitState("kubelet.service", exists=True, active="failed"),
        UnitState("kubelet.service", active="active", restarts=3, started=time.monotonic() + 3600),
    ],
    ids=["it has failed", "it was restarted just now, and not for the first time"],
)
def test_failing_service_is_reported_with_its_last_log_line(unit: UnitState) -> None:
    assert seen_with(unit).failed_services == (("kubelet.service", "it broke"),)


def test_service_with_old_restarts_is_not_reported_as_failed() -> None:
    assert seen_with(UnitState("kubelet.service", active="active", restarts=30, started=0.0)).failed_services == ()


AZURE: dict[str, object] = {
    "azure.servicePrincipal.clientId": "11111111-0000-4000-8000-000000000000",
    "azure.servicePrincipal.clientSecret": "x" * 8,
    "azure.tenantId": "f1e0f1e0-0000-4000-8000-000000000001",
    "node.kubelet.auth": "exec",
}


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (NODE, ""),
        (ApiStatusError(401, "Unauthorized", "who are you?"), "the cluster no longer accepts its Azure identity"),
    ],
)
def test_node_with_token_auth_needs_no_certificate(answer: Any, lost: str) -> None:
    host = machine()
    host.apply(Remove(CERTIFICATE))
    api = Answers({("GET", "/api/v1/nodes/edge-1"): [answer]})
    sight = check_node_health(host, config_of(AZURE), "edge-1", api.client)
    assert (sight.uses_tokens, sight.expired, sight.expiring, sight.lost_reason) == (True, False, False, lost)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", False),
        (b"clusters:\n- cluster:\n    certificate-authority: x\n", False),
        (b"clusters:\n- cluster:\n    server: https://api.example\n", True),
        (b'{"clusters": [{"cluster": {"server": "https://api.example"}}]}', True),
    ],
)
def test_kubeconfig_in_yaml_or_json_names_a_server(content: bytes, expected: bool) -> None:
    assert has_server(content) is expected
