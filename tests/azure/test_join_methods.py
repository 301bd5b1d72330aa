"""Joins nodes with every combination of identity, Kubernetes authentication and network.

Each node joins with one command, runs a pod, is polled and reported, has its credential replaced while it runs, and
leaves the machine unchanged.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import network
from aks_flex_lab.components.resource_provider import RESOURCE_GROUP_ID
from tests.agents import exists, flex, pod_runs, web_pod
from tests.join_methods import CERTIFICATE, EXEC, by_arc, by_managed_identity
from tests.lab_azure import differences_but_copies, sort_packages
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

KUBELET = "/var/lib/kubelet"
NETWORK_CONTRIBUTOR = "4d97b98b-1d4f-4787-a291-c67834d212e7"


@pytest.fixture
def make(lab: Lab, add_machine: Add) -> Iterator[Callable[..., ManagedLabNode]]:
    """Yields a function that creates nodes at the provider; deletes their resources after the test."""
    made: list[ManagedLabNode] = []

    def describe(name: str, site: str = "site-1", **properties: Any) -> ManagedLabNode:
        made.append(ManagedLabNode.make(lab, add_machine(name, site=site), **properties))
        return made[-1]

    yield describe
    for node in made:
        node.delete()


def run_life_cycle(node: ManagedLabNode, renew: Callable[[ManagedLabNode], None], *words: str) -> None:
    """Runs the life cycle of a node: join, run a pod, replace its credential, unbootstrap."""
    lab, machine, pod = node.lab, node.machine, f"web-{node.name}"
    before = machine.snapshot()
    node.join(*words)
    node.wait_until_ready()
    lab.cluster.apply(web_pod(pod, node.name))
    until(lambda: pod_runs(lab, pod), f"a pod runs on {node.name}")
    node.wait_until_applied(
        node.update(nodeConfig={**node.properties.get("nodeConfig", {}), "labels": {"way": "tried"}})
    )
    renew(node)
    node.wait_until_ready()
    node.delete()
    node.wait_until_left()
    assert node.node() is None
    assert differences_but_copies(before, machine) == []
    until(lambda: not role_of(lab, node), "its identity may do nothing any more")


def role_of(lab: Lab, node: ManagedLabNode) -> str:
    binding = lab.cluster.get("clusterrolebinding", f"aks-flex-node:node:{node.name}")
    return str(binding["roleRef"]["name"]) if binding else ""


def replace_secret(node: ManagedLabNode) -> None:
    """Sets a new client secret, with which the kubelet gets its next token."""
    changed = node.lab.azure.directory.change(
        node.principal, secret=f"new-{node.principal.secret}", older_secrets=(node.principal.secret,)
    )
    node.principal = changed
    node.wait_until_applied(node.update())
    node.lab.azure.directory.change(changed, older_secrets=())
    node.machine.run("rm", "-f", f"{KUBELET}/azure-token.json")
    token = json.loads(node.machine.run(f"{KUBELET}/token.sh").out)
    assert token["kind"] == "ExecCredential"
    assert token["status"]["token"]


def replace_token(node: ManagedLabNode) -> None:
    """Deletes the cached token; the kubelet gets another from the machine's identity endpoint."""
    before = node.machine.run("cat", f"{KUBELET}/azure-token.json").out
    node.machine.run("rm", f"{KUBELET}/azure-token.json")
    node.machine.run(f"{KUBELET}/token.sh")
    assert node.machine.run("cat", f"{KUBELET}/azure-token.json").out != before


def replace_certificate(node: ManagedLabNode) -> None:
    """Deletes the kubelet's certificate; the kubelet gets another with its Azure identity."""
    own = f"{KUBELET}/pki/kubelet-client-current.pem"
    node.machine.run("sh", "-c", f"rm {KUBELET}/pki/kubelet-client-*; systemctl restart kubelet")
    until(lambda: exists(node.machine, own), f"{node.name} gets a certificate")


@pytest.mark.promise
def test_service_principal_node_joins_with_tokens_and_with_certificate(
    lab: Lab, make: Callable[..., ManagedLabNode]
) -> None:
    by_tokens, certified = make("sp-exec", kubernetesAuth=EXEC), make("sp-cert", kubernetesAuth=CERTIFICATE)
    with ThreadPoolExecutor(2) as pool:
        ways = ((by_tokens, replace_secret), (certified, replace_certificate))
        for done in [pool.submit(run_life_cycle, *way) for way in ways]:
            done.result()


@pytest.mark.long
def test_managed_identity_node_switches_from_tokens_to_certificate(
    lab: Lab, make: Callable[..., ManagedLabNode]
) -> None:
    node = make("vm-1", kubernetesAuth=EXEC)
    by_managed_identity(node)

    def certified(node: ManagedLabNode) -> None:
        """Switches a running node from tokens to a certificate."""
        node.wait_until_applied(node.update(kubernetesAuth=CERTIFICATE))
        assert exists(node.machine, f"{KUBELET}/pki/kubelet-client-current.pem")
        until(lambda: role_of(lab, node) == "system:node-bootstrapper", "its identity may do less")

    run_life_cycle(node, certified)


@pytest.mark.long  # the next test also joins with Arc
def test_node_joins_with_arc_identity(lab: Lab, make: Callable[..., ManagedLabNode]) -> None:
    node = make("arc-1", kubernetesAuth=EXEC)
    words = by_arc(node)
    sort_packages(node.machine)

    def seen(node: ManagedLabNode) -> None:
        status = node.status()
        assert (status["arc"]["status"], status["vpn"]["status"], status["node"]["status"]) == (
            "Connected",
            "disabled",
            "Ready",
        )
        assert status["timestamp"]
        replace_token(node)

    run_life_cycle(node, seen, *words)


def test_node_joins_with_arc_identity_through_vpn(lab: Lab, make: Callable[..., ManagedLabNode]) -> None:
    reach = {"vpn": {"enabled": True, "autoProvision": True}, "kubelet": {"serverURL": network.PRIVATE_API_URL}}
    node = make("arc-2", "private", kubernetesAuth=EXEC, nodeConfig=reach)
    machine, words = node.machine, by_arc(node)
    sort_packages(machine)
    ask = ("curl", "--silent", "--insecure", "--max-time", "3", f"{network.PRIVATE_API_URL}/version")
    assert not machine.run(*ask, check=False).ok

    def renewed(node: ManagedLabNode) -> None:
        """Renews the VPN certificate with the machine's identity."""
        found = node.status()
        assert (found["arc"]["status"], found["vpn"]["status"]) == ("Connected", "Connected")
        lab.azure.assignments.put(RESOURCE_GROUP_ID, NETWORK_CONTRIBUTOR, found["arc"]["principalId"])
        before = machine.run("sh", "-c", "ls /var/lib/aks-flex-node/vpn/*.pem").out
        flex(machine, "bootstrap-vpn", "--renew")
        assert machine.run("sh", "-c", "ls /var/lib/aks-flex-node/vpn/*.pem").out != before
        assert node.status()["vpn"]["status"] == "Connected"

    run_life_cycle(node, renewed, *words)
    gateway = lab.vpn.resources.find(
        f"{RESOURCE_GROUP_ID}/providers/Microsoft.Network/virtualNetworkGateways/aks-flex-node"
    )
    assert gateway
    assert gateway.document["properties"]["vpnClientConfiguration"]["vpnClientRootCertificates"] == []


def test_secrets_are_in_root_only_files_and_not_in_processes_or_logs(
    lab: Lab, make: Callable[..., ManagedLabNode]
) -> None:
    node = make("sp-seen", kubernetesAuth=EXEC)
    node.join()
    secret, machine = node.principal.secret, node.machine
    machine.run(f"{KUBELET}/token.sh")
    token = json.loads(machine.run("cat", f"{KUBELET}/azure-token.json").out)["token"]
    for canary in (secret, token):
        open_to_all = machine.run(
            "sh", "-c", f"grep -rlF -- '{canary}' /etc /var/lib /var/log /run /tmp 2>/dev/null || true"
        )
        files = open_to_all.out.split()
        modes = {machine.run("stat", "-c", "%a %U", file).out.strip() for file in files}
        assert files
        assert modes == {"600 root"}
        assert (
            canary not in machine.run("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '").out
        )
        assert canary not in machine.run("journalctl", "--no-pager").out
    assert flex(machine, "verify", check=False).code == 0
