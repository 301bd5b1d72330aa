"""Tests of a node that joins by exec, with a real API server: what root on it can do to others."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.clusters import access, prerequisites
from aks_flex_rp.clusters.admission_policies import BINDING_PREFIX
from aks_flex_rp.clusters.connections import load_kubeconfig
from aks_flex_rp.clusters.managed_cluster import open_client
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from tests.harness import Lines
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab

OWN, OTHER = "exec-own", "exec-other"
IDS = {OWN: "11111111-2222-3333-4444-555555555555", OTHER: "22222222-2222-3333-4444-555555555555"}
DENIED = "may write only"


class ExecNode:
    """The identity of the node OWN, as root on its machine can use it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def tries(self, *words: str, **document: Any) -> str:
        """Runs kubectl as the identity; returns the error, or nothing."""
        text = json.dumps(document) if document else ""
        files = ("-f", "-") if document else ()
        done = self.lab.cluster.run(*words, *files, "--as", IDS[OWN], check=False, input=text)
        return "" if done.ok else done.err + done.out

    def reports_address(self, name: str) -> str:
        """Replaces the status of a Node, as a kubelet does."""
        found = self.lab.cluster.get("node", name)
        found["status"]["addresses"] = [{"type": "InternalIP", "address": "192.0.2.1"}]
        return self.tries("replace", "--raw", f"/api/v1/nodes/{name}/status", **found)

    def requests_token(self, namespace: str, account: str, bound: dict[str, str] | None = None) -> str:
        """Requests a token of a service account, as a kubelet does for a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"audiences": [], "boundObjectRef": bound} if bound else {"audiences": []}
        document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.tries("create", "--raw", path, **document)


def bound_to(kind: str, name: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": kind, "name": name}


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def lease(name: str, namespace: str = "kube-node-lease") -> dict[str, Any]:
    where = {"name": name, "namespace": namespace}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": where}


def pod(name: str, on: str, *, mirror: bool = False) -> dict[str, Any]:
    annotations = {"kubernetes.io/config.mirror": "hash"} if mirror else {}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    spec = {"nodeName": on, "containers": [{"name": "pause", "image": "pause"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def exec_node(lab: Lab) -> Iterator[ExecNode]:
    provider = lab.supervisor.process("provider")
    assert provider
    provider.stop()  # it does not know these nodes
    asyncio.run(_grant(lab))
    lab.cluster.apply(node(OTHER), lease(OTHER), lease("exec-leader", "kube-system"), pod("exec-of-other", OTHER))
    made = ExecNode(lab)
    until(lambda: DENIED in made.tries("create", "--dry-run=server", **node("probe")), "the policy is in effect")
    yield made
    for words in (
        ("node", OWN, OTHER),
        ("lease", OWN, OTHER, "-n", "kube-node-lease"),
        ("lease", "exec-leader", "-n", "kube-system"),
        ("pod", "exec-of-other"),
    ):
        lab.cluster.run("delete", *words, "--ignore-not-found", "--force", check=False)
    lab.cluster.run("delete", "clusterrolebinding", *(f"{BINDING_PREFIX}{each}" for each in IDS), check=False)
    lab.up(Lines())


async def _grant(lab: Lab) -> None:
    client = open_client(load_kubeconfig(lab.admin_kubeconfig))
    try:
        await prerequisites.ensure_objects(client)
        for name, identity in IDS.items():
            await access.grant_access(client, name, ClusterAccess(identity, AccessMethod.EXEC))
    finally:
        await client.close()


def test_exec_node_registers_and_reports_itself(exec_node: ExecNode) -> None:
    assert exec_node.tries("create", **node(OWN)) == ""
    assert exec_node.tries("label", "node", OWN, "flex=yes") == ""
    until(lambda: exec_node.reports_address(OWN) == "", "the address is reported, also after a conflict", 60)
    assert exec_node.tries("create", **lease(OWN)) == ""
    assert exec_node.tries("create", **pod("exec-mirror", OWN, mirror=True)) == ""
    assert exec_node.tries("delete", "pod", "exec-mirror", "--force") == ""
    for words in (("nodes",), ("services", "-A"), ("pods", "-A"), ("runtimeclasses",), ("csidrivers",)):
        assert exec_node.tries("get", *words) == ""


def test_exec_node_cannot_change_other_nodes(exec_node: ExecNode) -> None:
    """With system:node it could taint, relabel or fake every node of the cluster."""
    assert DENIED in exec_node.tries("label", "node", OTHER, "stolen=yes")
    assert DENIED in exec_node.reports_address(OTHER)
    assert DENIED in exec_node.tries("create", **node("exec-invented"))
    assert "cannot delete" in exec_node.tries("delete", "node", OTHER)


def test_exec_node_cannot_change_leases_of_others(exec_node: ExecNode) -> None:
    """With system:node it could take the leases by which controllers elect their leader."""
    assert DENIED in exec_node.tries("annotate", "lease", OTHER, "-n", "kube-node-lease", "stolen=yes")
    assert DENIED in exec_node.tries("delete", "lease", "exec-leader", "-n", "kube-system")
    assert DENIED in exec_node.tries("create", **lease(OWN, "kube-system"))


def test_exec_node_cannot_write_pods_of_others(exec_node: ExecNode) -> None:
    assert DENIED in exec_node.tries("delete", "pod", "exec-of-other")
    assert DENIED in exec_node.tries("create", **pod("exec-elsewhere", OTHER, mirror=True))
    assert "may create only mirror pods" in exec_node.tries("create", **pod("exec-ordinary", OWN))


def test_exec_node_cannot_list_secrets(exec_node: ExecNode) -> None:
    """With system:node it could read every Secret of the cluster with one request."""
    for kind in ("secrets", "configmaps"):
        assert "cannot list" in exec_node.tries("get", kind, "-A")
        assert exec_node.tries("auth", "can-i", "watch", kind, "-n", "kube-system")  # fails, the answer is no


def test_exec_node_gets_tokens_of_service_accounts_with_pods_only(exec_node: ExecNode, lab: Lab) -> None:
    """Without a pod, it could get a token of every controller in kube-system, and so administer the cluster."""
    bound = "only tokens that are bound to a pod"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "exec-secret", "namespace": "default"}}
    lab.cluster.apply(secret)
    try:
        assert bound in exec_node.requests_token("kube-system", "clusterrole-aggregation-controller")
        assert bound in exec_node.requests_token("default", "default", bound_to("Secret", "exec-secret"))
        assert bound in exec_node.requests_token("default", "default", bound_to("Node", OTHER))
        assert bound in exec_node.requests_token("default", "default", {"apiVersion": "v1", "name": "exec-of-other"})
    finally:
        lab.cluster.run("delete", "secret", "exec-secret")
    invented = exec_node.requests_token("default", "default", bound_to("Pod", "exec-invented"))
    assert "not found" in invented
    lab.cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "exec-unused"}})
    try:
        foreign = exec_node.requests_token("default", "exec-unused", bound_to("Pod", "exec-of-other"))
        assert "different serviceaccount name" in foreign
    finally:
        lab.cluster.run("delete", "serviceaccount", "exec-unused")
    uid = lab.cluster.get("pod", "exec-of-other")["metadata"]["uid"]
    assert exec_node.requests_token("default", "default", {**bound_to("Pod", "exec-of-other"), "uid": uid}) == ""


def test_exec_node_cannot_create_pod_with_service_account(exec_node: ExecNode) -> None:
    """A mirror pod of its own with the service account would let it request the token."""
    body = pod("exec-mirror-of-account", OWN, mirror=True)
    body["metadata"]["namespace"] = "kube-system"
    body["spec"]["serviceAccountName"] = "clusterrole-aggregation-controller"
    assert "may not reference service accounts" in exec_node.tries("create", **body)


def test_identity_of_two_nodes_can_write_neither(exec_node: ExecNode, lab: Lab) -> None:
    third = access.access_binding(IDS[OWN], "aks-flex-node:kubelet", "exec-third")
    lab.cluster.apply(third)
    try:
        until(lambda: DENIED in exec_node.tries("label", "node", OWN, "--overwrite", "flex=2"), "it is denied")
        assert DENIED in exec_node.tries("create", **node("exec-third"))
    finally:
        lab.cluster.run("delete", "clusterrolebinding", f"{BINDING_PREFIX}exec-third")
