"""Tests of certificates for nodes that join with their Azure identity."""

from __future__ import annotations

import ipaddress
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.clusters import access
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from tests.unit.rp.clusters.builders import request_for
from tests.unit.rp.clusters.harness import APPROVED, DENIED, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
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
        await grant(scene, CERTIFICATE)
        yield scene

    return granted()


def ask(scene: Scene, name: str = "csr-1", *, node: str = "edge-1", user: str = OID, **odd: Any) -> dict[str, Any]:
    document = request_for(node, **odd)
    document["metadata"] = {
        "name": name,
        "creationTimestamp": format_utc(),
    }
    document["spec"] |= {"username": user, "groups": ["system:authenticated"]}
    return scene.api.put(f"{REQUESTS}/{name}", document)


async def send(scene: Scene, name: str = "csr-1", **odd: Any) -> None:
    await scene.approver.changed("ADDED", ask(scene, name, **odd))


def serving(scene: Scene, **odd: Any) -> dict[str, Any]:
    own = (x509.DNSName("edge-1"), x509.IPAddress(ipaddress.ip_address("192.0.2.1")))
    usages = ("digital signature", "server auth")
    return ask(scene, names=own, signer=SERVING_SIGNER, usages=usages, **odd)


def has_address(scene: Scene) -> None:
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}]
    labels = {"kubernetes.azure.com/managed": "false"}
    scene.api.put(f"{NODES}/edge-1", {"metadata": {"labels": labels}, "status": {"addresses": addresses}})


async def test_identity_csrs_of_node_are_approved_repeatedly(scene: Scene) -> None:
    await send(scene)
    assert scene.decisions() == APPROVED
    await scene.approver.changed("MODIFIED", scene.has("csr-1", certificate="pem"))
    await send(scene, "csr-2")

    assert scene.decisions("csr-2") == APPROVED
    assert scene.heard.about("edge-1") == ["asked", "certified", "asked"]


async def test_identity_csr_is_approved_only_after_it_is_recorded(scene: Scene) -> None:
    request = ask(scene)
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
    await send(scene, **odd)

    assert scene.decisions() == DENIED
    [(what, node, csr, told)] = scene.heard.told
    assert (what, node, csr) == ("refused", "edge-1", "csr-1")
    assert why in told


async def test_csrs_of_users_without_node_identity_are_ignored(scene: Scene) -> None:
    for number, user in enumerate((OTHER, "system:serviceaccount:default:somebody", "ann@example.com")):
        await send(scene, f"csr-{number}", user=user)
        assert scene.decisions(f"csr-{number}") == []

    assert scene.heard.told == []


async def test_identity_csr_of_deleted_node_is_denied_despite_binding(scene: Scene) -> None:
    scene.heard.given.clear()
    await send(scene)

    assert scene.decisions() == DENIED


async def test_identity_csr_for_name_of_foreign_node_is_denied(scene: Scene) -> None:
    scene.api.put(f"{NODES}/edge-1", {})
    await send(scene)

    assert scene.decisions() == DENIED
    assert "not a flex node" in scene.heard.told[0][3]


async def test_identity_csr_approved_by_others_is_accepted_or_deleted(scene: Scene) -> None:
    ask(scene)
    await scene.approver.changed("MODIFIED", scene.has("csr-1", "Approved"))
    assert scene.heard.about("edge-1") == ["asked"]

    ask(scene, "csr-2", groups=("system:masters",))
    await scene.approver.changed("MODIFIED", scene.has("csr-2", "Approved"))
    assert f"{REQUESTS}/csr-2" not in scene.api.objects
    assert scene.heard.about("edge-1") == ["asked", "refused"]


async def test_client_csr_of_node_with_exec_auth_is_denied(scene: Scene) -> None:
    await grant(scene, EXEC)
    await send(scene)

    assert scene.decisions() == DENIED


async def test_client_csr_is_approved_while_node_switches_from_exec_auth(scene: Scene) -> None:
    await grant(scene, EXEC)
    scene.heard.methods["edge-1"] = AccessMethod.CERTIFICATE
    await send(scene)

    assert scene.decisions() == APPROVED


async def test_serving_csr_is_approved_once_node_has_addresses(scene: Scene) -> None:
    await grant(scene, EXEC)
    await scene.approver.changed("ADDED", serving(scene))
    assert scene.decisions() == []

    has_address(scene)
    await scene.approver.clean_up()
    assert scene.decisions() == APPROVED


async def test_serving_csr_for_another_node_is_denied(scene: Scene) -> None:
    await grant(scene, EXEC)
    has_address(scene)
    await grant(scene, ClusterAccess(OTHER, AccessMethod.EXEC), "edge-2")
    await scene.approver.changed("ADDED", serving(scene, user=OTHER))

    assert scene.decisions() == DENIED
    assert scene.heard.about("edge-2") == ["refused"]
