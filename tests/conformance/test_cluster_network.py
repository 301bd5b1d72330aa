"""Pods, Services and DNS names across nodes and sites, with a network plugin beside the agent's own bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.agents import flex, web_pod
from tests.conformance.conftest import EARLY_POD
from tests.conformance.suite import bridge
from tests.wait import until

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PAGE = "web-node-"  # each web server responds with the name of its pod
SERVER: dict[str, Any] = {
    "image": "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
    "command": ["/agnhost", "netexec", "--http-port=80"],
}


@pytest.fixture(scope="module")
def addresses(lab: Lab, nodes: list[EdgeMachine]) -> dict[str, str]:
    """Runs a web server on each node, and a Service for both; returns the addresses of the pods."""
    names = [f"web-{machine.name}" for machine in nodes]
    ports = [{"port": 80}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}}
    lab.cluster.apply(
        *(web_pod(f"web-{machine.name}", machine.name, **SERVER) for machine in nodes),
        {**service, "spec": {"selector": {"app": "web"}, "ports": ports}},
    )
    lab.cluster.run("wait", "pod", *names, "--for=condition=Ready", "--timeout=60s", timeout=90)
    return {name: lab.cluster.get("pod", name)["status"]["podIP"] for name in names}


def page(lab: Lab, pod: str, address: str) -> str:
    return lab.cluster.run("exec", pod, "--", "curl", "-s", "-m", "5", f"http://{address}/hostname", check=False).out


def test_pods_of_different_sites_reach_each_other_by_address(lab: Lab, addresses: dict[str, str]) -> None:
    for pod in addresses:
        for other, address in addresses.items():
            until(lambda p=pod, o=other, a=address: page(lab, p, a) == o, f"{pod} reaches {other}")  # type: ignore[misc]


def test_service_is_reached_from_every_node_by_its_dns_name(lab: Lab, addresses: dict[str, str]) -> None:
    for pod in addresses:
        for name in ("web", "web.default.svc.cluster.local"):
            seen: set[str] = set()
            until(
                lambda p=pod, n=name, s=seen: s.add(page(lab, p, n)) or set(addresses) <= s,  # type: ignore[misc]
                f"{pod} reaches both pods by {name}",
            )


def test_pod_resolves_names_of_the_lab_through_coredns(lab: Lab, addresses: dict[str, str]) -> None:
    for pod in addresses:
        assert "198.18.0.30" in lab.cluster.run("exec", pod, "--", "dig", "+short", "dl.k8s.io").out


def test_api_server_reaches_pods_of_every_node(lab: Lab, addresses: dict[str, str]) -> None:
    for pod in addresses:
        assert PAGE in lab.cluster.run("get", "--raw", f"/api/v1/namespaces/default/pods/{pod}:80/proxy/hostname").out
    assert PAGE in lab.cluster.run("get", "--raw", "/api/v1/namespaces/default/services/web:80/proxy/hostname").out


def test_api_server_reads_logs_and_runs_commands_on_every_node(lab: Lab, addresses: dict[str, str]) -> None:
    for pod, address in addresses.items():
        assert "Started HTTP server" in lab.cluster.run("logs", pod).out
        assert address in lab.cluster.run("exec", pod, "--", "ip", "-4", "-oneline", "address", "show", "eth0").out


def test_pods_reach_the_api_server_by_its_service(lab: Lab, addresses: dict[str, str]) -> None:
    ask = ("curl", "-s", "-k", "-m", "5", "https://kubernetes.default.svc.cluster.local/version")
    for pod in addresses:
        assert "gitVersion" in lab.cluster.run("exec", pod, "--", *ask).out


def test_no_pod_stays_on_the_bridge_of_the_agent(
    lab: Lab, nodes: list[EdgeMachine], early_container: str, addresses: dict[str, str]
) -> None:
    for machine in nodes:
        assert bridge(machine) == []
        flex(machine, "verify")
    # It may get the same address again, because both networks assign addresses of the node's range.
    until(lambda: running_container(lab) not in {"", early_container}, "the pod runs on the cluster network")
    address = lab.cluster.get("pod", EARLY_POD)["status"]["podIP"]
    for pod in addresses:
        ask = ("curl", "-s", "-m", "5", f"http://{address}/")
        assert "this page comes from a pod of the lab" in lab.cluster.run("exec", pod, "--", *ask).out


def running_container(lab: Lab) -> str:
    """Returns the ID of the container of the early pod if the pod is ready, otherwise an empty string."""
    [container] = lab.cluster.get("pod", EARLY_POD)["status"]["containerStatuses"]
    return str(container["containerID"]) if container["ready"] else ""
