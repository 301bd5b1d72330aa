"""Tests of networks and VPN gateways in the lab's ARM, with our client and az: delays, failures and etags."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_lab.arm import openvpn
from aks_flex_lab.arm.network_resources import NetworkDelays, NetworkResources
from aks_flex_lab.files import write_atomically
from aks_flex_node.agent.arc.azure_client import gateway_grants
from aks_flex_node.agent.vpn.client_profile import parse_profile, unpack_profile
from aks_flex_node.azure.arm import ArmClient, AzureCallError
from aks_flex_node.azure.operations import OperationTimeout, started_operation, wait_for_operation
from aks_flex_node.azure.roles import CLUSTER_USER
from tests.service.lab.cloud_harness import CLUSTER, OWNER, READER
from tests.service.lab.test_resource_manager import somebody
from tests.unit.agent.config.builders import PEM
from tests.unit.agent.vpn.fakes import quick_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.lab.cloud_harness import Cloud

API = "2024-05-01"
GROUP = CLUSTER.partition("/providers/")[0]
NETWORK = f"{GROUP}/providers/Microsoft.Network/virtualNetworks/net"
ADDRESS = f"{GROUP}/providers/Microsoft.Network/publicIPAddresses/ip"
GATEWAY = f"{GROUP}/providers/Microsoft.Network/virtualNetworkGateways/gw"
SUBNET = f"{NETWORK}/subnets/GatewaySubnet"
ROOT = {"name": "machine", "properties": {"publicCertData": quick_pair("machine").root}}


@pytest.fixture
def resources(cloud: Cloud) -> Iterator[NetworkResources]:
    """Yields the network resources with short delays; removes them after the test."""
    found = NetworkResources(cloud.state)
    found.set_delays(NetworkDelays(seconds=0.3))
    address = {"addressSpace": {"addressPrefixes": ["10.1.0.0/24"]}}
    found.put({"id": NETWORK, "name": "net", "type": "Microsoft.Network/virtualNetworks", "properties": address})
    yield found
    for id_ in found.all():
        found.remove(id_)
    found.set_delays(NetworkDelays())


@pytest.fixture
def owner(cloud: Cloud, resources: NetworkResources) -> ArmClient:
    return somebody(cloud, OWNER, GROUP)[1]


def made(owner: ArmClient, path: str, body: Any, if_match: str = "") -> Any:
    reply = owner.send(
        "PUT", path, API, {"location": "westeurope", **body}, {"If-Match": if_match} if if_match else {}
    )
    return wait_for_operation(
        owner, started_operation(reply, path, path, API, 0.0), OperationTimeout(30.0), lambda _: None
    )


def whole(owner: ArmClient, roots: list[Any] | None = None) -> Any:
    """Creates a network with a gateway."""
    made(owner, SUBNET, {"properties": {"addressPrefix": "10.1.0.224/27"}})
    made(owner, ADDRESS, {"sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}})
    return made(owner, GATEWAY, gateway_body(roots or [ROOT]))


def gateway_body(roots: list[Any]) -> dict[str, Any]:
    clients = {
        "vpnClientAddressPool": {"addressPrefixes": ["192.168.100.0/24"]},
        "vpnClientProtocols": ["OpenVPN"],
        "vpnAuthenticationTypes": ["Certificate"],
        "vpnClientRootCertificates": roots,
    }
    place = {"name": "default", "properties": {"subnet": {"id": SUBNET}, "publicIPAddress": {"id": ADDRESS}}}
    return {
        "properties": {
            "gatewayType": "Vpn",
            "vpnType": "RouteBased",
            "sku": {"name": "VpnGw1", "tier": "VpnGw1"},
            "ipConfigurations": [place],
            "vpnClientConfiguration": clients,
        }
    }


def test_gateway_is_provisioned_with_delay_and_linked_to_subnet(
    owner: ArmClient, resources: NetworkResources
) -> None:
    resources.set_delays(NetworkDelays(seconds=1.5))
    done = whole(owner)
    assert done["properties"]["provisioningState"] == "Succeeded"
    (subnet,) = owner.send("GET", NETWORK, API).body["properties"]["subnets"]
    assert subnet["properties"]["ipConfigurations"] == [{"id": f"{GATEWAY}/ipConfigurations/default"}]
    before = owner.send("GET", GATEWAY, API).body
    reply = owner.send("PUT", GATEWAY, API, before)
    assert reply.body["properties"]["provisioningState"] == "Updating"
    with pytest.raises(AzureCallError) as caught:
        owner.send("PUT", GATEWAY, API, before)
    assert caught.value.code == "AnotherOperationInProgress"


def test_gateway_update_with_stale_etag_is_refused(owner: ArmClient) -> None:
    old = whole(owner)["etag"]
    made(owner, GATEWAY, gateway_body([ROOT]), old)
    with pytest.raises(AzureCallError) as caught:
        made(owner, GATEWAY, gateway_body([]), old)
    assert (caught.value.status, caught.value.code) == (412, "PreconditionFailed")


def test_reader_cannot_change_network_resources(cloud: Cloud, owner: ArmClient) -> None:
    whole(owner)
    _, reader = somebody(cloud, READER, GROUP)
    assert reader.send("GET", GATEWAY, API).body["name"] == "gw"
    for method, path in (("PUT", GATEWAY), ("DELETE", GATEWAY), ("POST", f"{GATEWAY}/generatevpnprofile")):
        with pytest.raises(AzureCallError, match="Network") as caught:
            reader.send(method, path, API, gateway_body([]))
        assert caught.value.status == 403


def test_gateway_grants_of_a_machine_suffice_to_renew_its_certificate(cloud: Cloud, owner: ArmClient) -> None:
    whole(owner)
    principal, machine = somebody(cloud, CLUSTER_USER.id, CLUSTER)
    with pytest.raises(AzureCallError):
        machine.send("GET", GATEWAY, API)
    for scope, role in gateway_grants(owner.send("GET", GATEWAY, API).body, GATEWAY, NETWORK):
        cloud.assignments.put(scope, role.id, principal.object_id)

    assert machine.send("GET", CLUSTER, "2025-05-01").body["name"] == "plant"
    assert machine.send("GET", NETWORK, API).body["name"] == "net"
    made(machine, GATEWAY, gateway_body([ROOT, {**ROOT, "name": "renewed"}]))
    assert machine.send("POST", f"{GATEWAY}/generatevpnprofile", API, {}).status in {200, 202}
    for method, path in (("PUT", NETWORK), ("DELETE", NETWORK), ("DELETE", SUBNET)):
        with pytest.raises(AzureCallError):
            machine.send(method, path, API, {})


def test_resource_in_use_cannot_be_deleted(owner: ArmClient, resources: NetworkResources) -> None:
    whole(owner)
    with pytest.raises(AzureCallError, match="in use"):
        owner.send("DELETE", ADDRESS, API)
    for path in (GATEWAY, ADDRESS, SUBNET):
        owner.send("DELETE", path, API)
    assert list(resources.all()) == [NETWORK.lower()]
    assert owner.send("GET", NETWORK, API).body["properties"]["subnets"] == []


def test_vpn_profile_is_downloadable_only_with_signed_url(cloud: Cloud, owner: ArmClient) -> None:
    whole(owner)
    write_atomically(openvpn.shared_key_file(cloud.state), "-----BEGIN OpenVPN Static key V1-----\n00\n")
    write_atomically(openvpn.authority_file(cloud.state), PEM)
    path = f"{GATEWAY}/generatevpnprofile"
    reply = owner.send("POST", path, API, {"authenticationMethod": "EAPTLS"})
    assert reply.status == 202
    url = wait_for_operation(
        owner, started_operation(reply, "the profile", path, API, 0.0), OperationTimeout(30.0), lambda _: None
    )
    with urllib3.PoolManager(ca_certs=cloud.ca) as pool:
        content = pool.request("GET", url).data
        assert pool.request("GET", url.partition("?")[0]).status == 403
    assert zipfile.is_zipfile(io.BytesIO(content))
    assert parse_profile(unpack_profile(content)).protocol == "tcp-client"
