"""The life of a node in a flex node pool of the lab's AKS: changes in place, upgrades, failures, and its removal."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import network, node_agent
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.tools.artifacts import artifact_tree
from aks_flex_lab.versions import NodeVersions
from tests.agents import facts, flex
from tests.wait import until, until_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

POOL, NAME = "life", "pool-life"
AGENT_ROLE = "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d"
TOKEN = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
BOOTSTRAP = "/var/lib/kubelet/bootstrap-kubeconfig"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
OLDER, BROKEN = "1.35.4", "1.35.98"
FAILING = """#!/bin/sh
echo 'E0101 00:00:00.000000 1 run.go:74] "command failed" err="this one was built to fail"' >&2
exit 1
"""


@dataclass(frozen=True)
class PoolNode:
    lab: Lab
    machine: EdgeMachine
    pools: LabPools

    def get(self) -> dict[str, Any]:
        return dict(self.lab.cluster.get("node", NAME) or {})

    @property
    def uid(self) -> str:
        return str(self.get().get("metadata", {}).get("uid", ""))

    @property
    def version(self) -> str:
        return str(self.get().get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))

    @property
    def is_ready(self) -> bool:
        found = self.get().get("status", {}).get("conditions", ())
        return any((one["type"], one["status"]) == ("Ready", "True") for one in found)

    @property
    def daemon(self) -> dict[str, Any]:
        return dict(facts(self.machine, "status")["daemon"])

    @property
    def stored_version(self) -> str:
        return str(
            json.loads(self.machine.run("cat", "/var/lib/aks-flex-node/current-config.json").out)["configVersion"]
        )

    @property
    def kubelet_started(self) -> str:
        return self.machine.run("systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", "kubelet").out

    @property
    def etag(self) -> str:
        return str(self.pools.machine(POOL, NAME)["properties"]["eTag"])

    def change(self, **kubernetes: Any) -> str:
        """Changes the Machine, as `az aks machine update` does; returns its new eTag."""
        before = self.etag
        self.pools.put_machine(POOL, NAME, kubernetes)
        assert self.etag != before
        return self.etag

    def phase_of(self, kind: str, name: str) -> str:
        return str((self.lab.cluster.get(kind, name).get("status") or {}).get("phase"))

    def has(self, path: str) -> bool:
        return self.machine.run("test", "-e", path, check=False).ok

    def delete_node(self) -> None:
        self.lab.cluster.run("delete", "node", NAME, "--wait=false")


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[PoolNode]:
    """Yields one node for all tests of this file, which run in this order."""
    pools = LabPools(lab)
    pools.put(POOL, {"orchestratorVersion": OLDER})
    with lab.exclusive():
        machine = lab.inventory.add(NAME, DebianRelease.BOOKWORM, "site-1")
    until_named(machine, "api.flex.internal")
    node_agent.install(machine)
    principal = lab.azure.directory.service_principal(NAME, "right")
    lab.azure.assignments.put(pool_id(POOL), AGENT_ROLE, principal.object_id)
    azure = {
        "resourceManager": network.MANAGEMENT_URL,
        "caCertData": base64.b64encode(lab.authority.certificate.read_bytes()).decode(),
        "tenantId": TENANT_ID,
        "servicePrincipal": {"clientId": principal.client_id, "clientSecret": "right"},
    }
    policy = {"healthTimeoutSeconds": 90}
    node_agent.write_configuration(
        machine, {"azure": azure, "npd": {"version": NodeVersions().npd}, "updatePolicy": policy}, "/root/own.json"
    )
    flex(machine, "agent", "--aks-pool", pool_id(POOL), "--config", "/root/own.json")
    yield PoolNode(lab, machine, pools)
    for each in pools.machines(POOL):
        pools.delete_machines(POOL, [each["name"]])
    with lab.exclusive():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", NAME, "--ignore-not-found", "--wait=false")
    pools.delete(POOL)


@pytest.fixture
def broken(lab: Lab) -> Iterator[str]:
    """Yields a kubelet version on the mirror that exits immediately."""
    folder = artifact_tree(lab.toolbox) / f"dl.k8s.io/v{BROKEN}"
    for program in ("kubelet", "kubectl", "kubeadm"):
        place = folder / f"bin/linux/amd64/{program}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(FAILING)
        place.with_name(f"{program}.sha256").write_text(hashlib.sha256(FAILING.encode()).hexdigest())
    yield BROKEN
    shutil.rmtree(folder)


def test_labels_and_taints_change_in_place(node: PoolNode) -> None:
    until(lambda: node.daemon["providerState"] == "Connected", "the daemon reads its Machine")
    assert node.daemon["source"] == {"kind": "aksPool", "address": pool_id(POOL), "machine": NAME}
    uid, started = node.uid, node.kubelet_started
    etag = node.change(nodeLabels={"rack": "7"}, nodeTaints=["edge=yes:PreferNoSchedule"])
    until(lambda: node.stored_version == etag, "the daemon applies the labels and taints")
    assert (node.uid, node.kubelet_started, node.is_ready) == (uid, started, True)
    assert node.get()["metadata"]["labels"]["rack"] == "7"
    assert "edge=yes:PreferNoSchedule" in node.machine.run("cat", "/etc/default/kubelet-node").out
    assert flex(node.machine, "verify", check=False).ok


def test_node_deleted_by_a_person_comes_back(node: PoolNode) -> None:
    uid = node.uid
    node.delete_node()
    until(lambda: node.uid not in {"", uid} and node.is_ready, "the Node is registered again")
    assert node.version == f"v{OLDER}"
    until(lambda: node.daemon["pending"] is None, "nothing is pending")


def test_lost_certificate_is_replaced_with_a_new_token_of_the_pool(node: PoolNode) -> None:
    expired = f"sed -Ei 's/{TOKEN.pattern}/abcdef.0123456789abcdef/' {BOOTSTRAP}"
    node.machine.run(
        "sh", "-c", f"systemctl stop kubelet; rm -r /var/lib/kubelet/pki; {expired}; systemctl start kubelet"
    )
    until(lambda: node.has(CERTIFICATE) and node.is_ready, "the node gets a new certificate")
    until(lambda: "certificate" in (node.daemon["lastJob"] or {}).get("message", ""), "the recovery is complete")
    token = TOKEN.search(node.machine.run("cat", BOOTSTRAP).out)
    assert token
    assert token[0] != "abcdef.0123456789abcdef"
    assert token[0] not in node.machine.run("cat", "/var/lib/aks-flex-node/current-config.json").out
    assert flex(node.machine, "verify", check=False).ok


def test_broken_version_is_rolled_back_after_the_deletion(node: PoolNode, broken: str) -> None:
    uid = node.uid
    etag = node.change(orchestratorVersion=broken)
    node.machine.run("systemctl", "restart", "aks-flex-node")  # reads the Machine at once
    waiting = "WaitingForNodeDeletion"
    until(lambda: (node.daemon["pending"] or {}).get("reason") == waiting, "the change waits for AKS")
    assert (node.uid, node.version, node.is_ready) == (uid, f"v{OLDER}", True)
    assert node.has(f"/opt/aks-flex-node/kubernetes/.{broken}.flex-new/bin/kubelet")  # staged

    node.delete_node()
    until(lambda: (node.daemon["pending"] or {}).get("reason") == "service-failed", "the update is rolled back")
    pending = node.daemon["pending"]
    assert (pending["configVersion"], "built to fail" in pending["message"]) == (etag, True)
    until(lambda: node.uid not in {"", uid} and node.is_ready, "the Node is registered again")
    assert node.version == f"v{OLDER}"
    conditions = {one["type"]: one for one in node.get()["status"]["conditions"]}
    assert "built to fail" in conditions["FlexNodeUpgradeFailed"]["message"]
    events = node.lab.cluster.run("get", "events", "--field-selector", f"involvedObject.name={NAME}").out
    assert "UpgradeRolledBack" in events


def test_pool_upgrade_replaces_the_node_with_the_new_version(node: PoolNode) -> None:
    uid = node.uid
    newest = NodeVersions().kubernetes
    node.pools.put(POOL, {"orchestratorVersion": newest})  # returns when AKS has seen the new Node
    assert node.uid not in {"", uid}
    assert (node.version, node.is_ready) == (f"v{newest}", True)
    until(lambda: node.stored_version == node.etag and node.daemon["pending"] is None, "the update is complete")
    conditions = {one["type"]: one["status"] for one in node.get()["status"]["conditions"]}
    assert conditions.get("FlexNodeUpgradeFailed", "False") == "False"
    flex(node.machine, "health")


def test_machine_operation_reboots_the_machine(node: PoolNode) -> None:
    group, kinds = "unbounded-cloud.io", "machineoperations"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha3", "served": True, "storage": True, "subresources": {"status": {}}}
    definition = {
        "group": group,
        "scope": "Cluster",
        "names": {"kind": "MachineOperation", "plural": kinds},
        "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
    }
    rules = [
        {"apiGroups": [group], "resources": [kinds], "verbs": ["list"]},
        {"apiGroups": [group], "resources": [f"{kinds}/status"], "verbs": ["patch"]},
    ]
    crd, rbac, role = "apiextensions.k8s.io/v1", "rbac.authorization.k8s.io", "pool-operations"
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
    nodes = [{"kind": "Group", "name": "system:nodes", "apiGroup": rbac}]
    cluster, about = node.lab.cluster, {"metadata": {"name": role}}
    names = {"metadata": {"name": f"{kinds}.{group}"}}
    cluster.apply({"apiVersion": crd, "kind": "CustomResourceDefinition", **names, "spec": definition})
    cluster.apply({"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", **about, "rules": rules})
    binding = {**about, "roleRef": reference, "subjects": nodes}
    cluster.apply({"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", **binding})
    cluster.run("wait", "--for=condition=Established", "crd", f"{kinds}.{group}")
    before = node.machine.run("cat", BOOT_ID).out
    try:
        spec = {"machineRef": NAME, "operationKind": "NodeReboot"}
        request = {"apiVersion": f"{group}/v1alpha3", "kind": "MachineOperation", **about, "spec": spec}
        cluster.apply(request)
        node.machine.run("systemctl", "restart", "aks-flex-node")  # looks for operations at once
        kind = f"{kinds}.{group}"
        until(lambda: node.phase_of(kind, role) == "Complete", "the machine is rebooted")
        assert node.machine.run("cat", BOOT_ID).out != before
    finally:
        cluster.run("delete", "crd", f"{kinds}.{group}")
        cluster.run("delete", "clusterrole,clusterrolebinding", role)


def test_deleted_machine_is_unbootstrapped(node: PoolNode) -> None:
    node.pools.delete_machines(POOL, [NAME])
    until(
        lambda: not node.has("/var/lib/aks-flex-node"), "the machine leaves after two responses, a minute apart", 400
    )
    until(lambda: node.uid == "", "AKS deletes the Node")
