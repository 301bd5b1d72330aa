"""The life of a node in a flex node pool of the lab's AKS: changes in place, upgrades, failures, and its removal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolTimings
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.versions import NodeVersions
from tests.agents import disruption_budget, flex, web_pod
from tests.lab_machines import temporary_machine
from tests.pool_node import PoolNode
from tests.releases import broken_kubelet
from tests.service.agent.identity.test_credentials import in_pem, made_certificate
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab

POOL, NAME = "life", "pool-life"
CLIENT_CERTIFICATE = "/root/client.pem"
TOKEN = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
BOOTSTRAP = "/var/lib/kubelet/bootstrap-kubeconfig"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
OLDER, BROKEN = "1.35.4", "1.35.98"


class LivingNode(PoolNode):
    @property
    def labels(self) -> dict[str, str]:
        return dict(self.get()["metadata"]["labels"])

    @property
    def kubelet_started(self) -> str:
        return self.machine.run("systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", "kubelet").out

    @property
    def bootstrap_token(self) -> str:
        token = TOKEN.search(self.machine.run("cat", BOOTSTRAP).out)
        assert token
        return token[0]

    @property
    def is_cordoned(self) -> bool:
        return bool(self.get()["spec"].get("unschedulable"))

    def receive(self, **kubernetes: Any) -> None:
        """Changes the Machine, and waits until the daemon has received the change, but not applied it."""
        etag = self.change(**kubernetes)
        self.poll()
        until(lambda: self.version_in("next-config.json") == etag, "the daemon receives the change")

    def phase_of(self, kind: str, name: str) -> str:
        return str((self.lab.cluster.get(kind, name).get("status") or {}).get("phase"))

    def poll(self) -> None:
        """Restarts the daemon, which then reads the Machine and looks for operations at once."""
        self.machine.run("systemctl", "restart", "aks-flex-node")


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[LivingNode]:
    """Yields one node for all tests of this file, which run in this order. The lab's AKS does not change its Node, so
    that changes are those of the agent.
    """
    pools, timings = LabPools(lab), FlexPoolStore(lab.azure.state)
    timings.set_timings(PoolTimings(reconcile_nodes=False))
    pools.put(POOL, {"orchestratorVersion": OLDER})
    with temporary_machine(lab, NAME) as machine:
        key = rsa.generate_private_key(65537, 2048)
        certificate = made_certificate(key)
        principal = lab.azure.directory.service_principal(NAME, "")
        lab.azure.directory.change(principal, certificates=(certificate,))
        machine.run("sh", "-c", f"umask 077; cat >{CLIENT_CERTIFICATE}", input=certificate + in_pem(key))
        node = LivingNode.of(lab, machine, POOL, principal, clientCertificateFile=CLIENT_CERTIFICATE)
        node.join()
        yield node
        for each in pools.machines(POOL):
            pools.delete_machines(POOL, [each["name"]])
    pools.delete(POOL)
    timings.set_timings(PoolTimings())


@pytest.fixture
def broken(lab: Lab) -> Iterator[str]:
    """Yields a kubelet version on the mirror that exits immediately."""
    with broken_kubelet(lab, BROKEN) as version:
        yield version


def test_node_with_a_client_certificate_follows_its_machine(node: LivingNode) -> None:
    assert node.pools.machine(POOL, NAME)["properties"]["provisioningState"] == "Succeeded"
    until(lambda: node.daemon["providerState"] == "Connected", "the daemon reads its Machine")
    assert node.daemon["source"] == {"kind": "aksPool", "address": pool_id(POOL), "machine": NAME}
    own = {"agentpool": POOL, "managed": "false", "mode": "user", "nodepool-type": "FlexNodes"}
    assert node.labels.items() >= {f"kubernetes.azure.com/{key}": value for key, value in own.items()}.items()


def test_labels_and_taints_change_in_place(node: LivingNode) -> None:
    assert "rack" not in node.labels
    uid, started = node.uid, node.kubelet_started
    etag = node.change(nodeLabels={"rack": "7"}, nodeTaints=["edge=yes:PreferNoSchedule"])
    node.poll()
    until(lambda: node.stored_version == etag, "the daemon applies the labels and taints")
    assert (node.uid, node.kubelet_started, node.is_ready) == (uid, started, True)
    assert node.labels["rack"] == "7"
    assert "edge=yes:PreferNoSchedule" in node.machine.run("cat", "/etc/default/kubelet-node").out
    assert flex(node.machine, "verify", check=False).ok


def test_node_deleted_by_a_person_comes_back(node: LivingNode) -> None:
    uid = node.uid
    node.delete_node()
    until(lambda: node.uid not in {"", uid} and node.is_ready, "the Node is registered again")
    assert node.version == OLDER
    assert {"key": "edge", "value": "yes", "effect": "PreferNoSchedule"} in node.get()["spec"]["taints"]
    until(lambda: node.daemon["pending"] is None, "nothing is pending")


def test_lost_certificate_is_replaced_with_a_new_token_of_the_pool(node: LivingNode) -> None:
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


def test_status_and_support_bundle_name_the_machine_without_secrets(node: LivingNode) -> None:
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


def test_broken_version_is_rolled_back_after_the_deletion(node: LivingNode, broken: str) -> None:
    uid = node.uid
    etag = node.change(orchestratorVersion=broken)
    node.poll()
    waiting = "WaitingForNodeDeletion"
    until(lambda: node.pending.get("reason") == waiting, "the change waits for AKS")
    assert (node.uid, node.version, node.is_ready) == (uid, OLDER, True)
    assert node.has(f"/opt/aks-flex-node/kubernetes/.{broken}.flex-new/bin/kubelet")  # staged

    node.delete_node()
    until(lambda: node.pending.get("reason") == "service-failed", "the update is rolled back")
    pending = node.pending
    assert (pending["configVersion"], "built to fail" in pending["message"]) == (etag, True)
    until(lambda: node.uid not in {"", uid} and node.is_ready, "the Node is registered again")
    assert node.version == OLDER
    conditions = {one["type"]: one for one in node.get()["status"]["conditions"]}
    assert "built to fail" in conditions["FlexNodeUpgradeFailed"]["message"]
    events = node.lab.cluster.run("get", "events", "--field-selector", f"involvedObject.name={NAME}").out
    assert "UpgradeRolledBack" in events


def test_pool_upgrade_replaces_the_node_with_the_new_version(node: LivingNode) -> None:
    uid = node.uid
    newest = NodeVersions().kubernetes
    node.pools.put(POOL, {"orchestratorVersion": newest})  # returns when AKS has seen the new Node
    assert node.uid not in {"", uid}
    assert (node.version, node.is_ready) == (newest, True)
    until(lambda: node.stored_version == node.etag and node.daemon["pending"] is None, "the update is complete")
    conditions = {one["type"]: one["status"] for one in node.get()["status"]["conditions"]}
    assert conditions.get("FlexNodeUpgradeFailed", "False") == "False"
    flex(node.machine, "health")


def test_immediate_update_drains_and_ends_with_the_newest_settings(node: LivingNode) -> None:
    node.join("--set", "aks.upgradeTrigger=immediate", "--set", "updatePolicy.allowDowngrade=true")
    assert node.version != OLDER
    cluster, uid, pod, budget = node.lab.cluster, node.uid, f"web-{NAME}", "pool-life"
    cluster.apply(web_pod(pod, NAME, app=budget), disruption_budget(budget, app=budget))
    try:
        cluster.run("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=240s", timeout=300)
        node.change(orchestratorVersion=OLDER)
        node.poll()
        until(lambda: node.is_cordoned, "the agent drains the node")
        node.receive(nodeLabels={"rack": "8"})  # while the budget holds the drain
        node.receive(nodeLabels={"row": "3"})
        assert (node.version, cluster.get("pod", pod) is not None) == (NodeVersions().kubernetes, True)
    finally:
        cluster.run("delete", "poddisruptionbudget", budget)
    until(lambda: node.stored_version == node.etag and node.daemon["pending"] is None, "the newest settings win")
    until(lambda: node.is_ready and not node.is_cordoned, "the node is Ready again")
    assert (node.uid, node.version) == (uid, OLDER)
    assert cluster.get("pod", pod) is None
    assert node.labels["row"] == "3"
    assert "rack" not in node.labels
    assert flex(node.machine, "verify", check=False).ok


def test_machine_operation_reboots_the_machine(node: LivingNode) -> None:
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


def test_deleted_machine_is_unbootstrapped(node: LivingNode) -> None:
    node.pools.delete_machines(POOL, [NAME])
    until(
        lambda: not node.has("/var/lib/aks-flex-node"), "the machine leaves after two responses, a minute apart", 400
    )
    until(lambda: node.uid == "", "AKS deletes the Node")
