"""Tests of the kubelet's serving certificate for a known node."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from cryptography import x509

from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.facts import KUBERNETES
from aks_flex_rp.clusters.node_controller import NODES
from tests.unit.rp.clusters.builders import request_for
from tests.unit.rp.clusters.fakes import refusal
from tests.unit.rp.clusters.harness import APPROVED, DENIED, Scene


def ask(scene: Scene) -> dict[str, Any]:
    own = (x509.DNSName("edge-1"), x509.IPAddress(ipaddress.ip_address("192.0.2.1")))
    usages = ("digital signature", "server auth")
    document = request_for("edge-1", names=own, signer=SERVING_SIGNER, usages=usages)
    document["metadata"] = {
        "name": "csr-1",
        "creationTimestamp": format_utc(),
    }
    document["spec"] |= {"username": "system:node:edge-1", "groups": ["system:nodes"]}
    scene.heard.tokens["edge-1"] = ""
    return scene.api.put(f"{REQUESTS}/csr-1", document)


async def send(scene: Scene) -> None:
    await scene.approver.changed("ADDED", ask(scene))


def says(scene: Scene, node: str, at: str) -> None:
    scene.api.put(f"{NODES}/{node}", {"status": {"addresses": [{"type": "InternalIP", "address": at}]}})


async def test_pending_serving_csr_is_retried_after_error(scene: Scene) -> None:
    await send(scene)
    says(scene, "edge-1", "192.0.2.1")
    scene.api.answers[f"GET {NODES}"] = lambda _: refusal(500, "InternalError")
    with pytest.raises(ApiRefused):
        await scene.approver.clean_up()
    assert scene.decisions() == []

    del scene.api.answers[f"GET {NODES}"]
    await scene.approver.clean_up()
    assert scene.decisions() == APPROVED


@pytest.mark.parametrize("cluster_ip", ["192.0.2.1", "10.0.0.1"])
async def test_serving_csr_for_address_of_other_node_or_api_server_is_refused(scene: Scene, cluster_ip: str) -> None:
    says(scene, "edge-1", "192.0.2.1")
    says(scene, "cloud-1", "192.0.2.2" if cluster_ip == "192.0.2.1" else "192.0.2.1")
    scene.api.put(KUBERNETES, {"spec": {"clusterIP": cluster_ip}})
    await send(scene)

    whose = "the API server" if cluster_ip == "192.0.2.1" else "node cloud-1"
    assert scene.heard.told == [("refused", "edge-1", "csr-1", f"Address 192.0.2.1 belongs to {whose}.")]


async def test_serving_csr_for_custom_api_server_address_is_refused(scene: Scene) -> None:
    scene.heard.urls = {"https://192.0.2.1:6443"}
    says(scene, "edge-1", "192.0.2.1")
    await send(scene)

    assert scene.heard.told == [("refused", "edge-1", "csr-1", "Address 192.0.2.1 belongs to the API server.")]


def claims(scene: Scene, node: str, at: str) -> None:
    """Another flex node lists an address on its Node."""
    addresses = [{"type": "InternalIP", "address": at}]
    scene.api.put(f"{NODES}/{node}", {"metadata": {"labels": MANAGED_LABEL}, "status": {"addresses": addresses}})


async def test_serving_csr_for_address_of_another_flex_node_is_refused(scene: Scene) -> None:
    """Attack: a compromised node lists the address of another one on its Node, and serves as that node."""
    says(scene, "edge-1", "192.0.2.1")
    claims(scene, "edge-2", "192.0.2.1")
    await send(scene)

    assert scene.heard.told == [("refused", "edge-1", "csr-1", "Address 192.0.2.1 belongs to node edge-2.")]
    assert scene.decisions() == DENIED


async def test_serving_csr_for_address_of_a_deleted_node_is_approved(scene: Scene) -> None:
    says(scene, "edge-1", "192.0.2.1")
    claims(scene, "edge-2", "192.0.2.1")
    del scene.api.objects[f"{NODES}/edge-2"]
    await send(scene)

    assert scene.decisions() == APPROVED


async def test_shared_address_is_approved_when_the_setting_allows_it(scene: Scene) -> None:
    says(scene, "edge-1", "192.0.2.1")
    claims(scene, "edge-2", "192.0.2.1")
    await scene.replica(shared_addresses=True).changed("ADDED", ask(scene))

    assert scene.decisions() == APPROVED
