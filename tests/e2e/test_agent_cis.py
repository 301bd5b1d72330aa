"""Worker checks of the CIS benchmark on the running node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from tests.agents import flex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

GOOD_CIPHERS = ("AES_128_GCM", "AES_256_GCM", "CHACHA20_POLY1305")


@pytest.fixture(scope="module")
def node(lab: Lab, shared: EdgeMachine) -> Iterator[EdgeMachine]:
    node_agent.write_configuration(shared, node_agent.configuration(lab))
    flex(shared, "bootstrap")
    yield shared
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")


@pytest.fixture(scope="module")
def running(lab: Lab, node: EdgeMachine) -> dict[str, Any]:
    """Returns the configuration of the running kubelet."""
    path = f"/api/v1/nodes/{node.name}/proxy/configz"
    return dict(json.loads(lab.cluster.run("get", "--raw", path).out)["kubeletconfig"])


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/etc/systemd/system/kubelet.service", "600"),
        ("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "600"),
        ("/var/lib/kubelet/kubeconfig", "600"),
        ("/var/lib/kubelet/bootstrap-kubeconfig", "600"),
        ("/var/lib/kubelet/config.yaml", "600"),
        ("/etc/kubernetes/certs/ca.crt", "644"),
    ],
)
def test_file_is_owned_by_root_with_restrictive_mode(node: EdgeMachine, path: str, mode: str) -> None:
    assert node.run("stat", "-c", "%a %U:%G", path).out.strip() == f"{mode} root:root"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("authentication.anonymous.enabled", False),
        ("authentication.webhook.enabled", True),
        ("authentication.x509.clientCAFile", "/etc/kubernetes/certs/ca.crt"),
        ("authorization.mode", "Webhook"),
        ("makeIPTablesUtilChains", True),
        ("protectKernelDefaults", True),
        ("rotateCertificates", True),
        ("seccompDefault", True),
    ],
)
def test_kubelet_setting_matches_cis_benchmark(running: dict[str, Any], key: str, value: object) -> None:
    found: Any = running
    for part in key.split("."):
        found = found.get(part)
    assert found == value


def test_kubelet_limits_are_set(running: dict[str, Any]) -> None:
    assert running.get("readOnlyPort", 0) == 0
    assert running["streamingConnectionIdleTimeout"] not in {"0s", "0"}
    assert running["eventRecordQPS"] >= 0
    assert running["podPidsLimit"] > 0


def test_kubelet_tls_ciphers_are_restricted(running: dict[str, Any]) -> None:
    assert running["tlsCipherSuites"]
    for cipher in running["tlsCipherSuites"]:
        assert cipher.startswith("TLS_ECDHE_")
        assert any(good in cipher for good in GOOD_CIPHERS)


def test_kubelet_serves_tls_and_its_key_is_private(node: EdgeMachine) -> None:
    script = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 10250)))"
    assert "BEGIN CERTIFICATE" in node.run("python3", "-c", script).out
    assert node.run("stat", "-c", "%a", "/var/lib/kubelet/pki/kubelet.key").out.strip() == "600"


def test_kubelet_rejects_anonymous_requests(node: EdgeMachine) -> None:
    words = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}")
    assert node.run(*words, "https://127.0.0.1:10250/pods").out == "401"
    assert node.run(*words, "http://127.0.0.1:10255/pods", check=False).out == "000"


def test_kubelet_runs_without_hostname_override(node: EdgeMachine) -> None:
    pid = node.run("systemctl", "show", "kubelet", "-p", "MainPID", "--value").out.strip()
    assert "--hostname-override" not in node.run("cat", f"/proc/{pid}/cmdline").out
