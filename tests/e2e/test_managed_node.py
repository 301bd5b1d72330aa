"""Life of a managed node: the daemon applies what its resource specifies."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import network
from aks_flex_lab.components.resource_provider import CLUSTER_ID, LOCATION
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.pki import CertificateAuthority
from tests.agents import differences, exists, flex, pod_runs, web_pod
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

OLDER = {"kubernetes": "1.35.4", "containerd": "1.7.29", "runc": "1.4.0"}
NEWER = {"kubernetes": "1.36.3", "containerd": "2.4.2", "runc": "1.5.2"}


@pytest.fixture
def add_node(lab: Lab, add_machine: Add) -> Iterator[Callable[..., ManagedLabNode]]:
    """Yields a function that creates managed nodes; deletes their resources after the test."""
    made: list[ManagedLabNode] = []

    def make(name: str, **properties: Any) -> ManagedLabNode:
        made.append(ManagedLabNode.make(lab, add_machine(name), **properties))
        return made[-1]

    yield make
    for node in made:
        node.delete()


def started(machine: EdgeMachine, unit: str) -> str:
    return machine.run("systemctl", "show", "-p", "ActiveEnterTimestampMonotonic", "--value", unit).out.strip()


def refused(machine: EdgeMachine, *words: str) -> str:
    """Returns the error of a command that is refused because of the machine."""
    done = flex(machine, *words, check=False)
    assert done.code == 4, f"{done.out}\n{done.err}"
    return done.err


def test_managed_node_applies_changes_and_unbootstraps_on_delete(
    lab: Lab, add_node: Callable[..., ManagedLabNode]
) -> None:
    node = add_node("life-1", versions=OLDER)
    machine = node.machine
    before = machine.snapshot()
    assert "machine-not-joined" in refused(machine, "verify")
    assert "node-not-managed" in refused(machine, "daemon")

    node.join()

    node.wait_until_ready()
    flex(machine, "verify")
    assert "daemon-already-running" in flex(machine, "daemon", check=False).err
    assert machine.run("systemctl", "is-enabled", "aks-flex-node").out.strip() == "enabled"
    kubelet = started(machine, "kubelet")

    # Labels and taints change on the Node without a restart of a service.
    taint = {"key": "edge", "value": "yes", "effect": "PreferNoSchedule"}
    node.wait_until_applied(node.update(nodeConfig={"labels": {"tier": "gold"}, "taints": [taint]}))
    assert node.node()["metadata"]["labels"]["tier"] == "gold"
    until(lambda: taint in node.node()["spec"].get("taints", []), "the provider brings the taint")
    node.wait_until_applied(node.update(nodeConfig={}))
    assert "tier" not in node.node()["metadata"]["labels"]
    until(lambda: taint not in node.node()["spec"].get("taints", []), "the provider takes the taint away")
    assert started(machine, "kubelet") == kubelet

    # A kubelet setting restarts only the kubelet.
    containerd = started(machine, "containerd")
    node.wait_until_applied(node.update(nodeConfig={"maxPods": 42}))
    until(lambda: node.max_pods() == 42, "the Node says so")
    assert started(machine, "kubelet") != kubelet
    assert started(machine, "containerd") == containerd

    # An upgrade of all components, with a pod that can be drained.
    lab.cluster.apply(web_pod("web-life-1", "life-1"))
    until(lambda: pod_runs(lab, "web-life-1"), "a pod runs")
    node.wait_until_applied(node.update(versions=NEWER))
    info = node.node()["status"]["nodeInfo"]
    assert (info["kubeletVersion"], info["containerRuntimeVersion"]) == ("v1.36.3", "containerd://2.4.2")
    assert node.status()["versions"]["runc"] == "1.5.2"
    assert not node.node()["spec"].get("unschedulable")
    until(lambda: node.condition("ConfigApplied").get("status") == "True", "it is reported as applied")

    # Deleted: removed from the cluster, machine restored, ready to join again.
    node.delete()
    node.wait_until_left()
    until(lambda: node.node() is None, "the provider deletes the Node")
    assert differences(before, machine) == []
    assert "machine-not-joined" in refused(machine, "verify")
    node.properties = {}
    node.join()
    node.wait_until_ready()


def test_settings_of_the_machine_stay_on_a_managed_node(add_node: Callable[..., ManagedLabNode]) -> None:
    node = add_node("own-1")
    machine = node.machine
    node.join("--set", "proxy.http=http://proxy.example:3128", "--set", "npd.enabled=false")
    node.wait_until_applied(node.update(nodeConfig={"maxPods": 77}))
    flex(machine, "verify")
    environment = ("cat", "/etc/containerd/proxy.env")
    assert "http://proxy.example:3128" in machine.run(*environment).out
    assert not machine.run("systemctl", "is-active", "node-problem-detector", check=False).ok

    flex(machine, "agent", "--set", "proxy.http=")
    node.wait_until_applied(node.update(nodeConfig={"maxPods": 78}))
    assert "proxy.example" not in machine.run(*environment, check=False).out
    assert not machine.run("systemctl", "is-active", "node-problem-detector", check=False).ok


@pytest.mark.promise
def test_drift_is_repaired_and_repeated_conflict_is_reported(
    lab: Lab, add_node: Callable[..., ManagedLabNode]
) -> None:
    node = add_node("drift-1")
    machine = node.machine
    node.join()
    lab.cluster.apply(web_pod("web-drift-1", "drift-1"))
    until(lambda: pod_runs(lab, "web-drift-1"), "a pod runs")
    container = lab.cluster.get("pod", "web-drift-1")["status"]["containerStatuses"][0]["containerID"]

    machine.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml; rm /usr/local/bin/kubelet")
    machine.run("systemctl", "mask", "--now", "--runtime", "node-problem-detector")

    until(lambda: int(node.provider.get("drift-1")["status"].get("driftCount", 0)) >= 2, "the provider is told")
    until(lambda: flex(machine, "verify", check=False).code == 0, "it is repaired")
    said = machine.run("cat", "/var/log/aks-flex-node/agent.log").out
    seen = [one for one in map(json.loads, said.splitlines()) if one["event"] == "drift"]
    assert any("config.toml" in one["message"] and "+# was here" in one["diff"] for one in seen)
    assert lab.cluster.get("pod", "web-drift-1")["status"]["containerStatuses"][0]["containerID"] == container

    # With the policy `log`, drift is only reported.
    node.wait_until_applied(node.update(nodeConfig={"driftPolicy": "log"}))
    machine.run("sh", "-c", "echo '# again' >>/etc/containerd/config.toml")
    until(lambda: node.condition("Drifted").get("status") == "True", "drift is reported")
    assert "config.toml" in node.condition("Drifted")["message"]
    assert flex(machine, "verify", check=False).code == 1

    # With the policy `repair`, it is repaired, but not endlessly when another process reverts it.
    node.wait_until_applied(node.update(nodeConfig={"driftPolicy": "repair"}))
    fight = "while sleep 0.5; do grep -q fight /etc/default/kubelet || echo '# fight' >>/etc/default/kubelet; done"
    machine.run("systemd-run", "--unit=fighter", "--collect", "sh", "-c", fight)
    try:
        until(lambda: node.condition("Drifted").get("reason") == "ConflictingChanges", "it gives in, and says so")
        assert "/etc/default/kubelet" in node.condition("Drifted")["message"]
    finally:
        machine.run("systemctl", "stop", "fighter")


def test_managed_node_recovers_from_lost_node_object_and_kubeconfig(
    lab: Lab, add_node: Callable[..., ManagedLabNode]
) -> None:
    node = add_node("lost-1")
    machine = node.machine
    node.join()
    node.wait_until_ready()

    lab.cluster.run("delete", "node", "lost-1")
    until(lambda: lab.cluster.node_ready(node.name), "its Node is back")

    kubeconfig = "/var/lib/kubelet/kubeconfig"
    machine.run("sh", "-c", f"rm {kubeconfig} /var/lib/kubelet/pki/kubelet-client-*; systemctl restart kubelet")
    until(lambda: exists(machine, kubeconfig), "its kubeconfig is back")
    node.wait_until_ready()
    until(lambda: node.provider.join_state("lost-1") == "Joined", "the cluster has seen it join again")


def test_new_client_secret_is_tried_before_replacing_old_one(
    lab: Lab, add_node: Callable[..., ManagedLabNode]
) -> None:
    node = add_node("rotate-1")
    directory = lab.azure.directory
    node.join()
    node.wait_until_daemon_is("Connected")

    # Stored before Entra ID knows the secret: the old one remains in use, and this is reported.
    version = node.update(secret="a-new-secret")
    node.wait_until_applied(version)
    until(lambda: "do not work yet" in (node.status()["daemon"]["credentials"] or ""), "the new one is tried")
    assert node.condition("CredentialsRejected")["status"] == "True"

    node.principal = directory.change(node.principal, secret="a-new-secret")
    until(lambda: secret_in(node) == "a-new-secret", "the new one is taken")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"rotated": "yes"}}))
    said = node.machine.run("sh", "-c", "journalctl --no-pager; cat /var/log/aks-flex-node/agent.log").out
    assert "a-new-secret" not in said
    assert node.machine.run("stat", "-c", "%a", "/var/lib/aks-flex-node/current-config.json").out.strip() == "600"


def secret_in(node: ManagedLabNode) -> str:
    text = node.machine.run("cat", "/var/lib/aks-flex-node/current-config.json").out
    return str(json.loads(text)["config"]["azure"]["servicePrincipal"]["clientSecret"])


@pytest.mark.long
def test_new_cluster_ca_is_trusted_alongside_old_one(
    lab: Lab, add_node: Callable[..., ManagedLabNode], tmp_path: Path
) -> None:
    node = add_node("ca-1")
    node.join()
    other = CertificateAuthority(tmp_path)
    other.ensure()
    both = lab.authority.certificate.read_bytes() + other.certificate.read_bytes()
    known = lab.provider.cluster_file.read_text()
    kubelet = started(node.machine, "kubelet")

    changed = json.loads(known)
    changed["clusters"][0]["cluster"]["certificate-authority-data"] = b64encode(both).decode()
    register_cluster(lab, tmp_path, json.dumps(changed))
    try:
        trusted = ("cat", "/etc/kubernetes/certs/ca.crt")
        until(lambda: node.machine.run(*trusted).out.count("BEGIN CERTIFICATE") == 2, "both are trusted")
        node.wait_until_applied(str(node.provider.get("ca-1")["configVersion"]))
        assert started(node.machine, "kubelet") != kubelet
        assert lab.cluster.node_ready(node.name)
    finally:
        register_cluster(lab, tmp_path, known)
    until(lambda: node.machine.run(*trusted).out.count("BEGIN CERTIFICATE") == 1, "and the old one alone again")


def register_cluster(lab: Lab, folder: Path, kubeconfig: str) -> None:
    """Registers the lab's cluster with the provider: its endpoint and its CA."""
    file = folder / "kubeconfig"
    file.write_text(kubeconfig)
    file.chmod(0o600)
    where = (f"--kubeconfig={file}", f"--server={network.API_URL}", f"--location={LOCATION}", f"--tenant={TENANT_ID}")
    lab.provider.run_cli_on_state("cluster", "add", CLUSTER_ID, *where, "--force")
