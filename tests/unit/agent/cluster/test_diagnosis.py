"""Tests of the diagnosis of recorded kubelet and containerd messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.cluster import diagnosis
from aks_flex_node.agent.cluster.nodes import ClusterNode
from aks_flex_node.host.host import CommandResult, UnitState
from tests.hosts.recorded import RecordedHost

if TYPE_CHECKING:
    from aks_flex_node.agent.config.resolved import KubeletAuth

KUBELET = "kubelet.service"
RUNNING = UnitState(KUBELET, exists=True, active="active")
LOOPING = UnitState(KUBELET, exists=True, active="activating", restarts=2)

UNAUTHORIZED = (
    'E1115 06:00:01.123456    1234 certificate_manager.go:562] "Unhandled Error" err="kubernetes.io/kube-apiserver-'
    "client-kubelet: Failed while requesting a signed certificate from the control plane: cannot create certificate "
    'signing request: Unauthorized"'
)
UNAUTHORIZED_AT_START = (
    'E1115 06:00:01.123456    1234 run.go:72] "command failed" err="failed to run Kubelet: cannot create certificate '
    'signing request: Unauthorized"'
)
FORBIDDEN = (
    "E1115 06:00:01.123456    1234 certificate_manager.go:562] kubernetes.io/kube-apiserver-client-kubelet: Failed "
    "while requesting a signed certificate from the control plane: cannot create certificate signing request: "
    'certificatesigningrequests.certificates.k8s.io is forbidden: User "system:bootstrap:abcdef" cannot create'
)
UNTRUSTED = (
    'E1115 06:00:01.123456    1234 reflector.go:205] "Failed to watch" err="failed to list *v1.Node: Get '
    '\\"https://cluster.example:443/api/v1/nodes\\": tls: failed to verify certificate: x509: certificate signed by '
    'unknown authority"'
)
BAD_FLAG = (
    'E1115 06:00:01.123456    1234 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: --x"'
)
SWAP = (
    'E1115 06:00:01.123456    1234 run.go:72] "command failed" err="failed to run Kubelet: running with swap on is '
    'not supported, please disable swap or set --fail-swap-on flag to false"'
)
QUIET = 'I1115 06:00:01.123456    1234 kubelet.go:1] "Starting kubelet main sync loop"'
SYSTEMD = ["kubelet.service: Main process exited, code=exited, status=1/FAILURE",
           "kubelet.service: Failed with result 'exit-code'.",
           "kubelet.service: Scheduled restart job, restart counter is at 5.", "Started Kubelet."]  # fmt: skip
CONTAINERD_CONFIG = "containerd: failed to load TOML: /etc/containerd/config.toml: (3, 1): unexpected token"
CONTAINERD_ERROR = (
    'time="2026-11-15T06:00:01Z" level=fatal msg="Failed to run CRI service" error="failed to recover state: \\"x\\""'
)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (UNAUTHORIZED, "bootstrap-token-rejected"),
        (UNAUTHORIZED_AT_START, "bootstrap-token-rejected"),
        (FORBIDDEN, "bootstrap-token-forbidden"),
        (UNTRUSTED, "api-server-untrusted"),
        (QUIET, None),
    ],
)
def test_diagnosis_names_cluster_refusal_while_kubelet_runs(line: str, name: str | None) -> None:
    found = diagnosis.find_fatal_cause(KUBELET, RUNNING, [QUIET, line, QUIET], shows="bootstrapToken")
    assert (found and found.name) == name


@pytest.mark.parametrize("words", ["401 Unauthorized", "x509: certificate signed by unknown authority"])
@pytest.mark.parametrize("shows", ["exec", "certificate", "bootstrapToken", None])
def test_diagnosis_ignores_registry_errors_of_a_pod(words: str, shows: KubeletAuth | None) -> None:
    pull = f'"Failed to pull image" err="failed to resolve reference: {words}" image="registry.example/x:1"'
    wait = f'"Error syncing pod, skipping" err="failed to \\"StartContainer\\": {words}" pod="default/x" podUID="1"'
    lines = [f"E1115 06:00:01.123456    1234 log.go:32] {each}" for each in (pull, wait)]
    assert diagnosis.find_fatal_cause(KUBELET, RUNNING, lines, shows=shows) is None


@pytest.mark.parametrize("line", [UNAUTHORIZED, FORBIDDEN])
def test_diagnosis_ignores_token_errors_when_node_uses_no_token(line: str) -> None:
    assert diagnosis.find_fatal_cause(KUBELET, RUNNING, [line], shows=None) is None


def test_diagnosis_ignores_kubelet_errors_in_the_containerd_log() -> None:
    assert diagnosis.find_fatal_cause("containerd.service", RUNNING, [UNTRUSTED], shows="bootstrapToken") is None


@pytest.mark.parametrize(
    ("state", "fails"),
    [
        (RUNNING, False),
        (LOOPING, True),
        (UnitState(KUBELET, active="failed"), True),
        (UnitState(KUBELET, active="active", restarts=2), False),
        (UnitState(KUBELET, active="active", restarts=3), True),
        (UnitState(KUBELET, active="activating"), False),
    ],
)
def test_diagnosis_reports_a_unit_that_keeps_restarting_as_failed(state: UnitState, fails: bool) -> None:
    found = diagnosis.find_fatal_cause(KUBELET, state, [SWAP, *SYSTEMD], shows="bootstrapToken")
    assert (found is not None) is fails
    if found:
        assert found.name == "service-failed"
        assert "kubelet keeps failing: failed to run Kubelet: running with swap on" in found.message
        assert "journalctl -u kubelet" in found.hint


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([BAD_FLAG, *SYSTEMD], "failed to parse kubelet flag: unknown flag: --x"),
        ([QUIET, CONTAINERD_CONFIG], CONTAINERD_CONFIG),
        ([CONTAINERD_ERROR, 'time="x" level=info msg="later"'], 'failed to recover state: "x"'),
        (['time="x" level=error msg="only \\"this\\""'], 'only "this"'),
        (["panic: runtime error", "goroutine 1 [running]:"], "panic: runtime error"),
        (["E1115 06:00:01.123456    1234 server.go:1] plain words"], "plain words"),
        (["last words", *SYSTEMD], "last words"),
        (SYSTEMD, "no log output"),
        ([], "no log output"),
    ],
)
def test_most_relevant_log_line_is_selected(lines: list[str], expected: str) -> None:
    assert diagnosis.most_relevant_line(lines) == expected


def node(message: str = "", cidr: str = "", *, ready: bool = False) -> ClusterNode:
    condition = {"type": "Ready", "status": str(ready), "message": message, "reason": "KubeletNotReady"}
    return ClusterNode.read(
        {"metadata": {"name": "edge-1"}, "spec": {"podCIDR": cidr}, "status": {"conditions": [condition]}}
    )


@pytest.mark.parametrize(
    ("otherwise", "seen", "name", "words"),
    [
        (
            "the node did not become Ready",
            node("PLEG is not healthy", "10.0.0.0/24"),
            "node-not-ready",
            "PLEG is not",
        ),
        ("the node did not become Ready", node("cni plugin not initialized"), "node-not-ready", "pod CIDR"),
        ("the node did not become Ready", node(), "node-not-ready", "KubeletNotReady"),
        ("the cluster did not issue a certificate", None, "certificate-not-issued", "kubectl certificate approve"),
        ("the kubelet does not answer", None, "node-not-registered", "The kubelet does not answer"),
        ("the kubelet does not answer", node(ready=True), "node-not-registered", "unknown flag"),
    ],
)
def test_timeout_diagnosis_names_the_likeliest_cause(
    otherwise: str, seen: ClusterNode | None, name: str, words: str
) -> None:
    error = diagnosis.timeout_cause(KUBELET, [BAD_FLAG], otherwise, seen)
    assert (error.name, error.retryable) == (name, True)
    assert words in str(error)


def test_journal_of_a_unit_is_read_without_empty_lines() -> None:
    argv = ("journalctl", "--unit", KUBELET, "--lines", "400", "--output", "cat", "--no-pager")
    host = RecordedHost(answers={argv: CommandResult(0, "one\n\ntwo\n")})
    assert diagnosis.read_journal(host, RUNNING) == ["one", "two"]


REGISTER = 'E1115 1 kubelet_node_status.go:116] "Unable to register node with API server"'
OID = "0b1d0b1d-0000-4000-8000-000000000001"
FORBIDDEN = f'{REGISTER} err="nodes is forbidden: User \\"{OID}\\" cannot create resource \\"nodes\\" in API group"'
NO_TOKEN = (
    "azure-sign-in-failed: Entra ID gave us no token.",
    f'{REGISTER} err="getting credentials: exec: executable /var/lib/kubelet/token.sh failed with exit code 1"',
)


@pytest.mark.parametrize(
    ("lines", "name", "words"),
    [
        ((FORBIDDEN,), "azure-identity-forbidden", "object ID 0b1d0b1d-"),
        (NO_TOKEN, "azure-token-unavailable", "Entra ID gave us no token"),
        ((f'{REGISTER} err="Unauthorized"',), "azure-identity-rejected", "rejects the token"),
    ],
)
def test_diagnosis_explains_refused_azure_identity(lines: tuple[str, ...], name: str, words: str) -> None:
    found = diagnosis.find_fatal_cause(KUBELET, RUNNING, [QUIET, *lines, QUIET], shows="exec")
    assert found
    assert found.name == name
    assert words in found.message
    assert diagnosis.find_fatal_cause(KUBELET, RUNNING, [QUIET], shows="exec") is None


def test_diagnosis_suggests_no_role_binding_for_anonymous_user() -> None:
    line = FORBIDDEN.replace(OID, "system:anonymous")
    assert diagnosis.find_fatal_cause(KUBELET, RUNNING, [line], shows="certificate") is None


@pytest.mark.parametrize(
    "line",
    [
        'E0101 run.go:74] "command failed" err="failed to run Kubelet: rpc error: code = Unimplemented desc = '
        'unknown service runtime.v1.RuntimeService"',
        "failed to run Kubelet: validate service connection: CRI v1 runtime API is not implemented for endpoint",
    ],
)
def test_kubelet_without_a_cri_names_the_runtime_as_the_cause(line: str) -> None:
    state = UnitState("kubelet.service", exists=True, active="activating", restarts=3)
    found = diagnosis.find_fatal_cause("kubelet.service", state, [line], shows=None)
    assert found
    assert found.name == "container-runtime-without-cri"
