"""Worker checks of the CIS benchmark on the running node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import node_agent
from tests.agents import flex
from tests.cis_worker import Outcome, WorkerNode, numbers, run_controls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.fixture(scope="module")
def node(lab: Lab, shared: EdgeMachine) -> Iterator[EdgeMachine]:
    node_agent.write_configuration(shared, node_agent.configuration(lab))
    flex(shared, "bootstrap")
    yield shared
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")


def test_node_passes_the_worker_controls_of_cis(lab: Lab, node: EdgeMachine) -> None:
    found = run_controls(lab, node)

    assert numbers(found, Outcome.FAIL) == []
    assert numbers(found, Outcome.NOT_APPLICABLE) == ["4.1.3", "4.1.4", "4.3.1"]


def test_worker_controls_of_cis_find_weakened_files(lab: Lab, node: EdgeMachine) -> None:
    weakened = {"/var/lib/kubelet/kubeconfig": "4.1.5", "/var/lib/kubelet/config.yaml": "4.1.9"}
    for path in weakened:
        node.run("chmod", "0640", path)
    node.run("chown", "nobody", "/etc/kubernetes/certs/ca.crt")

    assert numbers(run_controls(lab, node), Outcome.FAIL) == ["4.1.5", "4.1.8", "4.1.9"]
    flex(node, "bootstrap")
    assert numbers(run_controls(lab, node), Outcome.FAIL) == []


def test_kubelet_protects_kernel_defaults(lab: Lab, node: EdgeMachine) -> None:
    assert WorkerNode(lab, node).setting("protectKernelDefaults") is True


def test_kubelet_serves_tls_and_its_key_is_private(node: EdgeMachine) -> None:
    script = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 10250)))"
    assert "BEGIN CERTIFICATE" in node.run("python3", "-c", script).out
    assert node.run("stat", "-c", "%a", "/var/lib/kubelet/pki/kubelet.key").out.strip() == "600"


def test_kubelet_rejects_anonymous_requests(node: EdgeMachine) -> None:
    words = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}")
    assert node.run(*words, "https://127.0.0.1:10250/pods").out == "401"
    assert node.run(*words, "http://127.0.0.1:10255/pods", check=False).out == "000"
