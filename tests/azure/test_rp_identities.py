"""Tests of the resource provider with a real API server: the permissions of a node's Azure identity."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.clusters import access, prerequisites
from aks_flex_rp.clusters.access import IDENTITY_LABEL
from aks_flex_rp.clusters.admission_policies import BINDING_PREFIX
from aks_flex_rp.clusters.client import ApiRefused, FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import load_kubeconfig
from aks_flex_rp.clusters.prerequisites import BINDINGS, check_permissions
from aks_flex_rp.join_state import KUBELET_ROLE, AccessMethod, ClusterAccess
from tests.harness import Lines
from tests.lab.cluster_harness import PACE, watched
from tests.lab.cluster_harness import until as eventually
from tests.providers import InAzure, Provider
from tests.unit.rp.clusters.builders import request_for
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.processes import CommandResult

NAME = "identity-1"
OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"
ADMIN = {
    **access.access_binding(OID, KUBELET_ROLE, "edge-4"),
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
}
BEGINS = {"joinState": "ConfigFetched"}


class Node:
    """A node that joins with a service principal and authenticates through ARM."""

    def __init__(self, lab: Lab, way: str) -> None:
        self.lab, self.provider = lab, Provider(lab)
        self.azure = InAzure(lab, lab.azure.directory.service_principal(NAME, "canary-secret"))
        self.id = self.azure.principal.object_id
        who = {"clientId": self.azure.principal.client_id, "clientSecret": "canary-secret"}
        auth = {"method": "servicePrincipal", "servicePrincipal": who}
        self.provider.put(NAME, {"azureAuth": auth, "kubernetesAuth": {"useAzureAuth": True, "method": way}})

    def introduces_itself(self) -> None:
        [told] = self.azure.ask(("POST", self.provider.node(NAME, "/reportStatus"), BEGINS))
        assert "answer" in told, told

    def role(self) -> str | None:
        binding = self.lab.cluster.get("clusterrolebinding", f"{BINDING_PREFIX}{NAME}", "--ignore-not-found")
        if not binding:
            return None
        assert [each["name"] for each in binding["subjects"]] == [self.id]
        return str(binding["roleRef"]["name"])

    def may(self, *words: str) -> bool:
        return self.lab.cluster.run("auth", "can-i", *words, "--as", self.id, check=False).out.strip() == "yes"

    def asks(self, **odd: Any) -> CommandResult:
        """Creates a certificate signing request with the node's identity."""
        text = json.dumps(request_for(NAME, **odd))
        return self.lab.cluster.run("create", "-f", "-", "-o", "name", "--as", self.id, check=False, input=text)

    def decided(self, **odd: Any) -> dict[str, Any]:
        name = self.asks(**odd).out.strip()
        assert name

        def request() -> dict[str, Any]:
            found: dict[str, Any] = self.lab.cluster.get(name)["status"]
            return found

        until(lambda: bool(request().get("conditions")), f"{name} is decided on")
        if request()["conditions"][0]["type"] == "Approved":
            until(lambda: bool(request().get("certificate")), f"{name} is signed")
        return request()


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(lab: Lab, way: str) -> Iterator[Node]:
    made = Node(lab, way)
    yield made
    made.provider.delete(NAME)


@pytest.mark.parametrize("way", ["certificate"], indirect=True)
def test_identity_gets_certificates_only_for_its_own_node(node: Node) -> None:
    assert node.role() is None
    assert "cannot create" in node.asks().err

    node.introduces_itself()

    assert node.role() == "system:node-bootstrapper"
    assert not node.may("get", "secrets", "--all-namespaces")
    for _ in range(2):
        first = node.decided()
        assert first["conditions"][0]["reason"] == "FlexNodeApproved"
    assert node.provider.join_state(NAME) == "BootstrapAttempted"
    refused = node.decided(as_user="system:node:identity-2")
    assert refused["conditions"][0]["type"] == "Denied"
    assert f"identity of node {NAME}" in refused["conditions"][0]["message"]
    assert node.decided(groups=("system:masters",))["conditions"][0]["type"] == "Denied"

    assert node.provider.delete(NAME).document["cleanup"]["clusterAccessRevoked"] is True

    assert node.role() is None
    until(lambda: "cannot create" in node.asks().err, "the API server has heard of it")
    happened = [each["what"] for each in node.provider.audit(NAME)]
    assert happened[-1] == "access.withdrawn"
    assert {"access.granted", "identity.used", "certificate.issued", "certificate.denied"} <= set(happened)


@pytest.mark.parametrize("way", ["exec"], indirect=True)
def test_exec_identity_has_node_role_until_auth_method_changes(node: Node) -> None:
    node.introduces_itself()
    assert node.role() == KUBELET_ROLE
    assert node.may("create", "nodes")

    node.provider.put(NAME, {"kubernetesAuth": {"method": "bootstrapToken"}})

    assert node.role() is None
    until(lambda: not node.may("create", "nodes"), "the API server has heard of it")


async def test_cluster_access_changed_by_hand_is_restored(lab: Lab) -> None:
    provider = lab.supervisor.process("provider")
    assert provider
    provider.stop()  # it does not know the nodes of this test
    kept, left = ClusterAccess(OID, AccessMethod.CERTIFICATE), ClusterAccess(OTHER, AccessMethod.EXEC)
    try:
        async with watched(lab, replicas=2, pace=replace(PACE, settle=0.3)) as site:
            site.heard.given["edge-1"] = kept
            await access.grant_access(site.client, "edge-1", kept)
            await access.grant_access(site.client, "edge-2", left)

            async def as_noted() -> bool:
                found, _ = await site.client.list(BINDINGS, labelSelector=IDENTITY_LABEL)
                return {access.binding_node(one): access.read_binding(one) for one in found} == {"edge-1": kept}

            await eventually(as_noted, "what nobody needs is taken")
            await site.hears("withdrawn", "edge-2")
            await access.withdraw_access(site.client, "edge-1")
            await eventually(as_noted, "what was deleted by hand is given again")
            await access.grant_access(site.client, "edge-1", ClusterAccess(OID, AccessMethod.EXEC))
            await eventually(as_noted, "what was changed by hand is changed back")
            site.heard.given.clear()
            for watch in site.watches:
                watch.node_changed("edge-1")
            await site.hears("withdrawn", "edge-1")
    finally:
        lab.up(Lines())


async def test_service_account_from_manifests_has_sufficient_permissions(lab: Lab) -> None:
    files = [
        word
        for name in ("10-namespace", "20-rbac", "21-rbac-exec")
        for word in ("-f", str(MANIFESTS / f"{name}.yaml"))
    ]
    lab.cluster.run("apply", *files)
    try:
        token = lab.cluster.run("create", "token", "aks-flex-rp", "-n", "aks-flex").out.strip()
        direct = load_kubeconfig(lab.admin_kubeconfig)
        async with KubeClient(FixedConnection(replace(direct, certificate="", key="", token=token))) as client:
            assert [one.level for one in await check_permissions(client, binds_kubelets=True)] == ["ok"]
            for way in (ClusterAccess(OID, AccessMethod.EXEC), ClusterAccess(OID, AccessMethod.CERTIFICATE)):
                await access.grant_access(client, "edge-3", way)
                assert await access.identity_nodes(client, OID) == ["edge-3"]
            assert await access.withdraw_access(client, "edge-3")
            with pytest.raises(ApiRefused, match="not currently held"):
                await client.create(BINDINGS, ADMIN)
    finally:
        lab.cluster.run("delete", "--ignore-not-found", *files)  # also deletes the content of the namespace
        async with KubeClient(FixedConnection(load_kubeconfig(lab.admin_kubeconfig))) as admin:
            await prerequisites.ensure_objects(admin)  # the policies with the lab's account as the approver
