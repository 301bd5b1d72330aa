"""The life of a node in a flex node pool of the lab's AKS: changes in place, upgrades, failures, and its removal."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab import network, node_agent
from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolTimings
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.versions import NodeVersions
from tests.agents import facts, flex, web_pod
from tests.releases import broken_kubelet
from tests.service.agent.identity.test_credentials import in_pem, made_certificate
from tests.wait import until, until_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

POOL, NAME = "life", "pool-life"
OWN, CLIENT_CERTIFICATE = "/root/own.json", "/root/client.pem"
AGENT_ROLE = "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d"
TOKEN = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
BOOTSTRAP = "/var/lib/kubelet/bootstrap-kubeconfig"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
OLDER, BROKEN = "1.35.4", "1.35.98"


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
    def labels(self) -> dict[str, str]:
        return dict(self.get()["metadata"]["labels"])

    @property
    def stored_version(self) -> str:
        return self.version_in("current-config.json")

    def version_in(self, file: str) -> str:
        text = self.machine.run("cat", f"/var/lib/aks-flex-node/{file}", check=False).out
        return str(json.loads(text)["configVersion"]) if text else ""

    @property
    def kubelet_started(self) -> str:
        return self.machine.run("systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", "kubelet").out

    @property
    def etag(self) -> str:
        return str(self.pools.machine(POOL, NAME)["properties"]["eTag"])

    @property
    def bootstrap_token(self) -> str:
        found = TOKEN.search(self.machine.run("cat", BOOTSTRAP).out)
        assert found
        return found[0]

    @property
    def is_cordoned(self) -> bool:
        return bool(self.get()["spec"].get("unschedulable"))

    def change(self, **kubernetes: Any) -> str:
        """Changes the Machine, as `az aks machine update` does; returns its new eTag."""
        before = self.etag
        self.pools.put_machine(POOL, NAME, kubernetes)
        assert self.etag != before
        return self.etag

    def receive(self, **kubernetes: Any) -> None:
        """Changes the Machine, and waits until the daemon has received the change, but not applied it."""
        etag = self.change(**kubernetes)
        self.poll()
        until(lambda: self.version_in("next-config.json") == etag, "the daemon receives the change")

    def phase_of(self, kind: str, name: str) -> str:
        return str((self.lab.cluster.get(kind, name).get("status") or {}).get("phase"))

    def has(self, path: str) -> bool:
        return self.machine.run("test", "-e", path, check=False).ok

    def poll(self) -> None:
        """Restarts the daemon, which then reads the Machine and looks for operations at once."""
        self.machine.run("systemctl", "restart", "aks-flex-node")

    def join(self, *words: str) -> None:
        flex(self.machine, "agent", "--aks-pool", pool_id(POOL), "--config", OWN, *words)

    def delete_node(self) -> None:
        self.lab.cluster.run("delete", "node", NAME, "--wait=false")


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[PoolNode]:
    """Yields one node for all tests of this file, which run in this order. The lab's AKS does not change its Node, so
    that changes are those of the agent.
    """
    pools, timings = LabPools(lab), FlexPoolStore(lab.azure.state)
    timings.set_timings(PoolTimings(reconcile_nodes=False))
    pools.put(POOL, {"orchestratorVersion": OLDER})
    with lab.exclusive():
        machine = lab.inventory.add(NAME, DebianRelease.BOOKWORM, "site-1")
    until_named(machine, "api.flex.internal")
    node_agent.install(machine)
    key = rsa.generate_private_key(65537, 2048)
    certificate = made_certificate(key)
    principal = lab.azure.directory.service_principal(NAME, "")
    lab.azure.directory.change(principal, certificates=(certificate,))
    machine.run("sh", "-c", f"umask 077; cat >{CLIENT_CERTIFICATE}", input=certificate + in_pem(key))
    lab.azure.assignments.put(pool_id(POOL), AGENT_ROLE, principal.object_id)
    azure = {
        "resourceManager": network.MANAGEMENT_URL,
        "caCertData": base64.b64encode(lab.authority.certificate.read_bytes()).decode(),
        "tenantId": TENANT_ID,
        "servicePrincipal": {"clientId": principal.client_id, "clientCertificateFile": CLIENT_CERTIFICATE},
    }
    policy = {"healthTimeoutSeconds": 90}
    node_agent.write_configuration(
        machine, {"azure": azure, "npd": {"version": NodeVersions().npd}, "updatePolicy": policy}, OWN
    )
    node = PoolNode(lab, machine, pools)
    node.join()
    yield node
    for each in pools.machines(POOL):
        pools.delete_machines(POOL, [each["name"]])
    with lab.exclusive():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", NAME, "--ignore-not-found", "--wait=false")
    lab.cluster.run("delete", "pod", f"web-{NAME}", "--ignore-not-found", "--force", "--grace-period=0")
    pools.delete(POOL)
    timings.set_timings(PoolTimings())


@pytest.fixture
def broken(lab: Lab) -> Iterator[str]:
    """Yields a kubelet version on the mirror that exits immediately."""
    with broken_kubelet(lab, BROKEN) as version:
        yield version


def test_node_with_a_client_certificate_follows_its_machine(node: PoolNode) -> None:
    assert node.pools.machine(POOL, NAME)["properties"]["provisioningState"] == "Succeeded"
    until(lambda: node.daemon["providerState"] == "Connected", "the daemon reads its Machine")
    assert node.daemon["source"] == {"kind": "aksPool", "address": pool_id(POOL), "machine": NAME}
    own = {"agentpool": POOL, "managed": "false", "mode": "user", "nodepool-type": "FlexNodes"}
    assert node.labels.items() >= {f"kubernetes.azure.com/{key}": value for key, value in own.items()}.items()


def test_labels_and_taints_change_in_place(node: PoolNode) -> None:
    assert "rack" not in node.labels
    uid, started = node.uid, node.kubelet_started
    etag = node.change(nodeLabels={"rack": "7"}, nodeTaints=["edge=yes:PreferNoSchedule"])
    node.poll()
    until(lambda: node.stored_version == etag, "the daemon applies the labels and taints")
    assert (node.uid, node.kubelet_started, node.is_ready) == (uid, started, True)
    assert node.labels["rack"] == "7"
    assert "edge=yes:PreferNoSchedule" in node.machine.run("cat", "/etc/default/kubelet-node").out
    assert flex(node.machine, "verify", check=False).ok


def test_node_deleted_by_a_person_comes_back(node: PoolNode) -> None:
    uid = node.uid
    node.delete_node()
    until(lambda: node.uid not in {"", uid} and node.is_ready, "the Node is registered again")
    assert node.version == f"v{OLDER}"
    assert {"key": "edge", "value": "yes", "effect": "PreferNoSchedule"} in node.get()["spec"]["taints"]
    until(lambda: node.daemon["pending"] is None, "nothing is pending")


def test_lost_certificate_is_replaced_with_a_new_token_of_the_pool(node: PoolNode) -> None:
    joined, made_up = node.bootstrap_token, "abcdef.0123456789abcdef"
    expired = f"sed -Ei 's/{TOKEN.pattern}/{made_up}/' {BOOTSTRAP}"
    node.machine.run(
        "sh", "-c", f"systemctl stop kubelet; rm -r /var/lib/kubelet/pki; {expired}; systemctl start kubelet"
    )
    until(lambda: node.has(CERTIFICATE) and node.is_ready, "the node gets a new certificate")
    until(lambda: "certificate" in (node.daemon["lastJob"] or {}).get("message", ""), "the recovery is complete")
    token = node.bootstrap_token
    assert token not in {joined, made_up}
    assert token not in node.machine.run("cat", "/var/lib/aks-flex-node/current-config.json").out
    assert flex(node.machine, "verify", check=False).ok


def test_status_and_support_bundle_name_the_machine_without_secrets(node: PoolNode) -> None:
    until(lambda: node.daemon["providerState"] == "Connected", "the daemon reads its Machine")
    shown = flex(node.machine, "status").out
    assert f"AKS pool {pool_id(POOL)}, Machine {NAME}" in shown
    assert f"Connected, configuration {node.etag}" in shown
    flex(node.machine, "support-bundle", "--output", "/root/bundle.tar.gz")
    bundle = node.machine.run("tar", "--extract", "--gzip", "--to-stdout", "--file", "/root/bundle.tar.gz").out
    status = json.loads(node.machine.run("tar", "-xzOf", "/root/bundle.tar.gz", "aks-flex-node/status.json").out)
    assert status["daemon"]["source"] == {"kind": "aksPool", "address": pool_id(POOL), "machine": NAME}
    assert status["daemon"]["configVersion"] == node.etag
    token = node.bootstrap_token
    key = node.machine.run("sed", "-n", "/PRIVATE KEY/,$p", CLIENT_CERTIFICATE).out.splitlines()[1]
    for text in (shown, bundle):
        assert token not in text
        assert key not in text


def test_broken_version_is_rolled_back_after_the_deletion(node: PoolNode, broken: str) -> None:
    uid = node.uid
    etag = node.change(orchestratorVersion=broken)
    node.poll()
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


def test_immediate_update_drains_and_ends_with_the_newest_settings(node: PoolNode) -> None:
    node.join("--set", "aks.upgradeTrigger=immediate", "--set", "updatePolicy.allowDowngrade=true")
    assert node.version != f"v{OLDER}"
    cluster, uid, pod, budget = node.lab.cluster, node.uid, f"web-{NAME}", "pool-life"
    name = {"name": budget, "namespace": "default"}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": budget}}}
    manifest = web_pod(pod, NAME)
    manifest["metadata"]["labels"] = {"app": budget}
    protection = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": name, "spec": spec}
    cluster.apply(manifest, protection)
    try:
        cluster.run("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=240s", timeout=300)
        node.change(orchestratorVersion=OLDER)
        node.poll()
        until(lambda: node.is_cordoned, "the agent drains the node")
        node.receive(nodeLabels={"rack": "8"})  # while the budget holds the drain
        node.receive(nodeLabels={"row": "3"})
        assert (node.version, cluster.get("pod", pod) is not None) == (f"v{NodeVersions().kubernetes}", True)
    finally:
        cluster.run("delete", "poddisruptionbudget", budget)
    until(lambda: node.stored_version == node.etag and node.daemon["pending"] is None, "the newest settings win")
    until(lambda: node.is_ready and not node.is_cordoned, "the node is Ready again")
    assert (node.uid, node.version) == (uid, f"v{OLDER}")
    assert cluster.get("pod", pod) is None
    assert node.labels["row"] == "3"
    assert "rack" not in node.labels
    assert flex(node.machine, "verify", check=False).ok


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
        node.poll()
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
