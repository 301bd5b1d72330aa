"""Certificates for nodes that join by their Azure identity, and for nobody else."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from cryptography import x509

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.clusters import access
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.join_state import AccessMethod, ClusterAccess
from tests.unit.rp.clusters.builders import in_loop, request_for
from tests.unit.rp.clusters.harness import Scene

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
CERTIFICATE, EXEC = ClusterAccess(OID, AccessMethod.CERTIFICATE), ClusterAccess(OID, AccessMethod.EXEC)
APPROVED, DENIED = [("Approved", "FlexNodeApproved")], [("Denied", "FlexNodeDenied")]


async def scene_with(given: ClusterAccess) -> Scene:
    scene = Scene()
    scene.heard.given["edge-1"] = given
    await access.grant_access(scene.client, "edge-1", given)
    return scene


def ask(scene: Scene, name: str = "csr-1", *, node: str = "edge-1", user: str = OID, **odd: Any) -> dict[str, Any]:
    document = request_for(node, **odd)
    document["metadata"] = {
        "name": name,
        "creationTimestamp": format_utc(),
    }
    document["spec"] |= {"username": user, "groups": ["system:authenticated"]}
    return scene.api.put(f"{REQUESTS}/{name}", document)


def serving(scene: Scene, **odd: Any) -> dict[str, Any]:
    own = (x509.DNSName("edge-1"), x509.IPAddress(ipaddress.ip_address("192.0.2.1")))
    usages = ("digital signature", "server auth")
    return ask(scene, names=own, signer=SERVING_SIGNER, usages=usages, **odd)


def has_address(scene: Scene) -> None:
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}]
    labels = {"kubernetes.azure.com/managed": "false"}
    scene.api.put(f"{NODES}/edge-1", {"metadata": {"labels": labels}, "status": {"addresses": addresses}})


@in_loop
async def test_a_node_gets_its_certificate_by_its_identity_and_later_another() -> None:
    scene = await scene_with(CERTIFICATE)
    await scene.approver.changed("ADDED", ask(scene))
    assert scene.decisions() == APPROVED
    await scene.approver.changed("MODIFIED", scene.has("csr-1", certificate="pem"))
    await scene.approver.changed("ADDED", ask(scene, "csr-2"))

    assert scene.decisions("csr-2") == APPROVED
    assert scene.heard.about("edge-1") == ["asked", "certified", "asked"]


@in_loop
async def test_the_service_knows_of_it_before_it_is_approved() -> None:
    scene = await scene_with(CERTIFICATE)
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
@in_loop
async def test_what_an_identity_is_not_for_is_refused_and_named(odd: dict[str, Any], why: str) -> None:
    scene = await scene_with(CERTIFICATE)
    await scene.approver.changed("ADDED", ask(scene, **odd))

    assert scene.decisions() == DENIED
    [(what, node, csr, told)] = scene.heard.told
    assert (what, node, csr) == ("refused", "edge-1", "csr-1")
    assert why in told


@in_loop
async def test_requests_of_users_who_are_nobodys_identity_are_left_to_others() -> None:
    scene = await scene_with(CERTIFICATE)
    for number, user in enumerate((OTHER, "system:serviceaccount:default:somebody", "ann@example.com")):
        await scene.approver.changed("ADDED", ask(scene, f"csr-{number}", user=user))
        assert scene.decisions(f"csr-{number}") == []

    assert scene.heard.told == []


@in_loop
async def test_a_node_that_is_gone_gets_nothing_although_its_binding_is_still_there() -> None:
    scene = await scene_with(CERTIFICATE)
    scene.heard.given.clear()
    await scene.approver.changed("ADDED", ask(scene))

    assert scene.decisions() == DENIED


@in_loop
async def test_a_name_of_the_clusters_own_nodes_is_not_given_away() -> None:
    scene = await scene_with(CERTIFICATE)
    scene.api.put(f"{NODES}/edge-1", {})
    await scene.approver.changed("ADDED", ask(scene))

    assert scene.decisions() == DENIED
    assert "not a flex node" in scene.heard.told[0][3]


@in_loop
async def test_a_request_that_somebody_else_approved_is_accepted_or_undone() -> None:
    scene = await scene_with(CERTIFICATE)
    ask(scene)
    await scene.approver.changed("MODIFIED", scene.has("csr-1", "Approved"))
    assert scene.heard.about("edge-1") == ["asked"]

    ask(scene, "csr-2", groups=("system:masters",))
    await scene.approver.changed("MODIFIED", scene.has("csr-2", "Approved"))
    assert f"{REQUESTS}/csr-2" not in scene.api.objects
    assert scene.heard.about("edge-1") == ["asked", "refused"]


@in_loop
async def test_a_node_that_is_its_identity_needs_no_certificate_to_log_in() -> None:
    scene = await scene_with(EXEC)
    await scene.approver.changed("ADDED", ask(scene))

    assert scene.decisions() == DENIED


@in_loop
async def test_a_node_that_is_to_have_a_certificate_gets_it_before_anything_is_taken_from_it() -> None:
    scene = await scene_with(EXEC)
    scene.heard.methods["edge-1"] = AccessMethod.CERTIFICATE
    await scene.approver.changed("ADDED", ask(scene))

    assert scene.decisions() == APPROVED


@in_loop
async def test_its_kubelet_gets_the_one_by_which_it_answers_once_its_node_says_where_it_is() -> None:
    scene = await scene_with(EXEC)
    await scene.approver.changed("ADDED", serving(scene))
    assert scene.decisions() == []

    has_address(scene)
    await scene.approver.tidy()
    assert scene.decisions() == APPROVED


@in_loop
async def test_nobody_answers_as_another_node() -> None:
    scene = await scene_with(EXEC)
    has_address(scene)
    scene.heard.given["edge-2"] = ClusterAccess(OTHER, AccessMethod.EXEC)
    await access.grant_access(scene.client, "edge-2", ClusterAccess(OTHER, AccessMethod.EXEC))
    await scene.approver.changed("ADDED", serving(scene, user=OTHER))

    assert scene.decisions() == DENIED
    assert scene.heard.about("edge-2") == ["refused"]
