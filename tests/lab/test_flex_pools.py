"""Tests of the lab's flex node pools with the lab's real cluster."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aks_flex_lab.cluster import LabCluster
from aks_flex_lab.pools import LabPools
from tests.agents import disruption_budget
from tests.harness import LAB, command
from tests.remedies.lab_harness import error_name
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.lab import Lab

POOL, NODE = "edge", "pool-node-1"
OLD, NEW = "1.35.4", "1.36.3"


@pytest.fixture
def pools(lab: Lab) -> Iterator[LabPools]:
    pools = LabPools(lab)
    pools.put(POOL, {"orchestratorVersion": OLD})
    yield pools
    lab.cluster.run("delete", "node", NODE, "--ignore-not-found")
    if names := [each["name"] for each in pools.machines(POOL)]:
        pools.delete_machines(POOL, names)
    pools.delete(POOL)


def node_request(name: str) -> dict[str, Any]:
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{name}"),
    ]
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject)).sign(key, hashes.SHA256())
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"csr-{name}"},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }


def register(cluster: LabCluster, version: str) -> None:
    """Creates a Node that is Ready, as a kubelet of this version does."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"conditions": [ready], "nodeInfo": {**dict.fromkeys(NODE_INFO, ""), "kubeletVersion": f"v{version}"}}
    cluster.run("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID"),
    *("operatingSystem", "osImage", "systemUUID"),
)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "guarded", "namespace": "default", "labels": {"app": "guarded"}},
    "spec": {
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 0,  # no kubelet ends it
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "none"}],
    },
}


def test_corrected_pool_command_changes_the_pool(pools: LabPools) -> None:
    def error(*words: str) -> str:
        return error_name(command(LAB, "pool", "add", POOL, *words, check=False).err)

    assert error("--label", "north") == "lab-label-invalid"
    command(LAB, "pool", "add", POOL, "--label", "site=north")
    assert pools.show(POOL)["properties"]["nodeLabels"] == {"site": "north"}

    assert error("--version", "9.9.9") == "lab-pool-request-rejected"
    command(LAB, "pool", "add", POOL, "--version", OLD)


def test_cluster_approves_the_certificate_of_a_node_with_a_pool_token(pools: LabPools, tmp_path: Path) -> None:
    data = pools.bootstrap_data(POOL)
    admin = pools.lab.cluster
    document = yaml.safe_load(admin.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["certificate-authority-data"] = data["node"]["kubelet"]["caCertData"]
    document["users"][0]["user"] = {"token": data["azure"]["bootstrapToken"]["token"]}
    own = tmp_path / "kubeconfig"
    own.write_text(json.dumps(document))
    node = LabCluster(admin.kubectl, own)
    node.run("create", "-f", "-", input=json.dumps(node_request("pool-node-9")))
    try:
        until(
            lambda: bool(node.get("csr", "csr-pool-node-9")["status"].get("certificate")),
            "the certificate exists",
            30,
        )
    finally:
        admin.run("delete", "csr", "csr-pool-node-9")
    assert not node.run("get", "nodes", check=False).ok


def test_pool_upgrade_drains_and_deletes_a_node_of_the_cluster(pools: LabPools) -> None:
    cluster = pools.lab.cluster
    register(cluster, OLD)
    pools.put_machine(POOL, NODE, {"nodeLabels": {"tier": "gold"}, "nodeTaints": ["edge=true:NoSchedule"]})
    node = cluster.get("node", NODE)
    assert node["metadata"]["labels"]["tier"] == "gold"
    assert {"key": "edge", "value": "true", "effect": "NoSchedule"} in node["spec"]["taints"]
    cluster.apply(POD, disruption_budget("guarded", app="guarded"))
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.run("patch", "pod", "guarded", "--subresource=status", "--type=merge", "-p", json.dumps(running))
    pools.put(POOL, {"orchestratorVersion": NEW}, wait=False)
    until(lambda: bool(cluster.get("node", NODE)["spec"].get("unschedulable")), "the Node is cordoned", 30)
    assert cluster.get("pod", "guarded")
    cluster.run("delete", "poddisruptionbudget", "guarded")
    until(lambda: cluster.get("node", NODE) is None, "the Node is deleted", 60)
    register(cluster, NEW)
    until(lambda: pools.show(POOL)["properties"]["provisioningState"] == "Succeeded", "the upgrade ends", 60)
    machine = pools.machine(POOL, NODE)["properties"]
    assert (machine["kubernetes"]["currentOrchestratorVersion"], machine["status"]["driftAction"]) == (NEW, "Synced")
