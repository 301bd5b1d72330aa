"""Tests of certificates that nodes request by their Azure identity, and of the serving certificates of kubelets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_rp.clusters import access
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.facts import KUBERNETES
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from tests.unit.rp.clusters.fakes import refusal
from tests.unit.rp.clusters.harness import APPROVED, DENIED, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
OURS = {"kubernetes.azure.com/managed": "false"}
BY_IDENTITY = (OID, ["system:authenticated"])
CERTIFICATE, EXEC = ClusterAccess(OID, AccessMethod.CERTIFICATE), ClusterAccess(OID, AccessMethod.EXEC)


async def grant(scene: Scene, given: ClusterAccess, node: str = "edge-1") -> None:
    scene.heard.given[node] = given
    await access.grant_access(scene.client, node, given)


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    """Returns a cluster whose node gets certificates by its identity."""

    @asynccontextmanager
    async def granted() -> AsyncIterator[Scene]:
        scene = Scene()
        scene.caller = BY_IDENTITY
        await grant(scene, CERTIFICATE)
        yield scene

    return granted()


async def test_identity_csrs_of_node_are_approved_repeatedly(scene: Scene) -> None:
    await scene.send()
    assert scene.decisions() == APPROVED
    await scene.approver.changed("MODIFIED", scene.has("csr-1", certificate="pem"))
    await scene.send("csr-2")

    assert scene.decisions("csr-2") == APPROVED
    assert scene.heard.about("edge-1") == ["asked", "certified", "asked"]


async def test_identity_csr_is_approved_only_after_it_is_recorded(scene: Scene) -> None:
    request = scene.ask()
    scene.heard.deaf = True
    with pytest.raises(ConnectionError):
        await scene.approver.changed("ADDED", request)

    assert scene.decisions() == []


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"groups": ("system:masters",)}, "requests the group 'system:masters'"),
        ({"usages": ("digital signature", "client auth", "server auth")}, "usages"),
        ({"names": (x509.DNSName("api.example.com"),)}, "alternative names"),
        ({"signer": "kubernetes.io/kube-apiserver-client"}, "signer"),
        ({"signer": SERVING_SIGNER}, "signer"),
        ({"as_user": "system:node:edge-2"}, "identity of node edge-1 requested another certificate"),
        ({"as_user": "kubernetes-admin"}, "identity of node edge-1 requested another certificate"),
    ],
)
async def test_identity_csr_beyond_its_scope_is_denied_with_reason(
    scene: Scene, odd: dict[str, Any], why: str
) -> None:
    await scene.send(**odd)

    assert scene.decisions() == DENIED
    [(what, node, csr, told)] = scene.heard.told
    assert (what, node, csr) == ("refused", "edge-1", "csr-1")
    assert why in told


async def test_csrs_of_users_without_node_identity_are_ignored(scene: Scene) -> None:
    for number, user in enumerate((OTHER, "system:serviceaccount:default:somebody", "ann@example.com")):
        scene.caller = (user, BY_IDENTITY[1])
        await scene.send(f"csr-{number}")
        assert scene.decisions(f"csr-{number}") == []

    assert scene.heard.told == []


async def test_identity_csr_of_deleted_node_is_denied_despite_binding(scene: Scene) -> None:
    scene.heard.given.clear()
    await scene.send()

    assert scene.decisions() == DENIED


async def test_identity_csr_for_name_of_foreign_node_is_denied(scene: Scene) -> None:
    scene.api.put(f"{NODES}/edge-1", {})
    await scene.send()

    assert scene.decisions() == DENIED
    assert "not a flex node" in scene.heard.told[0][3]


async def test_identity_csr_approved_by_others_is_accepted_or_deleted(scene: Scene) -> None:
    scene.ask()
    await scene.approver.changed("MODIFIED", scene.has("csr-1", "Approved"))
    assert scene.heard.about("edge-1") == ["asked"]

    scene.ask("csr-2", groups=("system:masters",))
    await scene.approver.changed("MODIFIED", scene.has("csr-2", "Approved"))
    assert f"{REQUESTS}/csr-2" not in scene.api.objects
    assert scene.heard.about("edge-1") == ["asked", "refused"]


async def test_client_csr_of_node_with_exec_auth_is_denied(scene: Scene) -> None:
    await grant(scene, EXEC)
    await scene.send()

    assert scene.decisions() == DENIED


async def test_client_csr_is_approved_while_node_switches_from_exec_auth(scene: Scene) -> None:
    await grant(scene, EXEC)
    scene.heard.methods["edge-1"] = AccessMethod.CERTIFICATE
    await scene.send()

    assert scene.decisions() == APPROVED


async def test_serving_csr_is_approved_once_node_has_addresses(scene: Scene) -> None:
    await grant(scene, EXEC)
    await scene.approver.changed("ADDED", scene.ask_for_serving())
    assert scene.decisions() == []

    scene.put_node("edge-1", "192.0.2.1", labels=OURS)
    await scene.approver.clean_up()
    assert scene.decisions() == APPROVED


async def test_serving_csr_for_another_node_is_denied(scene: Scene) -> None:
    await grant(scene, EXEC)
    scene.put_node("edge-1", "192.0.2.1", labels=OURS)
    await grant(scene, ClusterAccess(OTHER, AccessMethod.EXEC), "edge-2")
    scene.caller = (OTHER, BY_IDENTITY[1])
    await scene.approver.changed("ADDED", scene.ask_for_serving())

    assert scene.decisions() == DENIED
    assert scene.heard.about("edge-2") == ["refused"]


@pytest.fixture
def kubelet() -> AbstractAsyncContextManager[Scene]:
    """Returns a cluster in which a flex node asks with the certificate of its kubelet."""

    @asynccontextmanager
    async def running() -> AsyncIterator[Scene]:
        scene = Scene()
        scene.caller, scene.heard.tokens["edge-1"] = ("system:node:edge-1", ["system:nodes"]), ""
        yield scene

    return running()


async def test_pending_serving_csr_is_retried_after_error(kubelet: Scene) -> None:
    await kubelet.approver.changed("ADDED", kubelet.ask_for_serving())
    kubelet.put_node("edge-1", "192.0.2.1")
    kubelet.api.answers[f"GET {NODES}"] = lambda _: refusal(500, "InternalError")
    with pytest.raises(ApiRefused):
        await kubelet.approver.clean_up()
    assert kubelet.decisions() == []

    del kubelet.api.answers[f"GET {NODES}"]
    await kubelet.approver.clean_up()
    assert kubelet.decisions() == APPROVED


@pytest.mark.parametrize("cluster_ip", ["192.0.2.1", "10.0.0.1"])
async def test_serving_csr_for_address_of_other_node_or_api_server_is_refused(
    kubelet: Scene, cluster_ip: str
) -> None:
    kubelet.put_node("edge-1", "192.0.2.1")
    kubelet.put_node("cloud-1", "192.0.2.2" if cluster_ip == "192.0.2.1" else "192.0.2.1")
    kubelet.api.put(KUBERNETES, {"spec": {"clusterIP": cluster_ip}})
    await kubelet.approver.changed("ADDED", kubelet.ask_for_serving())

    whose = "the API server" if cluster_ip == "192.0.2.1" else "node cloud-1"
    assert kubelet.heard.told == [("refused", "edge-1", "csr-1", f"Address 192.0.2.1 belongs to {whose}.")]


async def test_serving_csr_for_custom_api_server_address_is_refused(kubelet: Scene) -> None:
    kubelet.heard.urls = {"https://192.0.2.1:6443"}
    kubelet.put_node("edge-1", "192.0.2.1")
    await kubelet.approver.changed("ADDED", kubelet.ask_for_serving())

    assert kubelet.heard.told == [("refused", "edge-1", "csr-1", "Address 192.0.2.1 belongs to the API server.")]


async def test_serving_csr_for_address_of_another_flex_node_is_refused(kubelet: Scene) -> None:
    """Attack: a compromised node lists the address of another one on its Node, and serves as that node."""
    kubelet.put_node("edge-1", "192.0.2.1")
    kubelet.put_node("edge-2", "192.0.2.1", labels=MANAGED_LABEL)
    await kubelet.approver.changed("ADDED", kubelet.ask_for_serving())

    assert kubelet.heard.told == [("refused", "edge-1", "csr-1", "Address 192.0.2.1 belongs to node edge-2.")]
    assert kubelet.decisions() == DENIED


async def test_serving_csr_for_address_of_a_deleted_node_is_approved(kubelet: Scene) -> None:
    kubelet.put_node("edge-1", "192.0.2.1")
    kubelet.put_node("edge-2", "192.0.2.1", labels=MANAGED_LABEL)
    del kubelet.api.objects[f"{NODES}/edge-2"]
    await kubelet.approver.changed("ADDED", kubelet.ask_for_serving())

    assert kubelet.decisions() == APPROVED


async def test_shared_address_is_approved_when_the_setting_allows_it(kubelet: Scene) -> None:
    kubelet.put_node("edge-1", "192.0.2.1")
    kubelet.put_node("edge-2", "192.0.2.1", labels=MANAGED_LABEL)
    await kubelet.replica(shared_addresses=True).changed("ADDED", kubelet.ask_for_serving())

    assert kubelet.decisions() == APPROVED
