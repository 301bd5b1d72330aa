"""Tests of the VPN connection: what is created in Azure and locally, what is kept, and what is removed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.components.vpn import HOSTS, LINK, NAME
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase, write
from aks_flex_node.agent.vpn import local_state
from aks_flex_node.agent.vpn.client_certificate import make_client_certificate
from aks_flex_node.agent.vpn.virtual_network import find_virtual_network
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeDirectory, RestartUnit, WriteFile
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA, MACHINE, config_of, empty_host
from tests.unit.agent.config.builders import CLUSTER_ID
from tests.unit.agent.vpn.fakes import (
    ADDRESS,
    API_NAME,
    GATEWAY,
    NETWORK,
    PROFILE,
    SUBNET,
    FakeAzure,
    archive,
    refusal,
    start,
)
from tests.unit.agent.vpn.harness import FILES, PAIR, SETTINGS, Site, numbered, theirs

if TYPE_CHECKING:
    from aks_flex_node.azure.arm import ArmReply


def test_vpn_connection_creates_missing_azure_resources_in_order(site: Site) -> None:
    site.run()
    puts = [call for call in site.azure.calls if call.startswith("PUT")]
    assert puts == [
        "PUT /virtualNetworks/net/subnets/GatewaySubnet",
        "PUT /publicIPAddresses/aks-flex-node-address",
        "PUT /virtualNetworkGateways/aks-flex-node",
    ]
    assert site.clients["vpnClientAddressPool"] == {"addressPrefixes": ["192.168.100.0/24"]}
    assert (site.clients["vpnClientProtocols"], site.clients["vpnAuthenticationTypes"]) == (
        ["OpenVPN"],
        ["Certificate"],
    )
    assert site.azure.roots() == ["aks-flex-node-edge-1-1"]
    assert site.azure.documents[NETWORK]["properties"]["subnets"][1]["properties"]["addressPrefix"] == "10.1.0.224/27"
    assert site.record.made == (SUBNET, ADDRESS, GATEWAY)


def test_vpn_secrets_are_only_in_files_of_mode_0600(site: Site) -> None:
    site.run()
    modes = {PAIR: 0o600, f"{DATA}/vpn/client.conf": 0o600, f"{DATA}/vpn.json": 0o600, f"{DATA}/vpn": 0o700}
    assert {path: site.host.mode_of(path) for path in modes} == modes
    told = " ".join(site.notes) + json.dumps(str(site.record)) + site.text(f"{DATA}/vpn.json")
    assert "sig=" not in told
    assert "PRIVATE KEY" not in told


@pytest.mark.parametrize(
    ("resolved", "zone", "line"),
    [
        ("10.1.0.10", "", f"10.1.0.10 {API_NAME} # aks-flex-node-vpn\n"),
        ("203.0.113.5", "", ""),
        ("", "10.1.0.77", f"10.1.0.77 {API_NAME} # aks-flex-node-vpn\n"),
    ],
    ids=["private", "public", "private zone, without a DNS server"],
)
def test_hosts_file_maps_the_api_server_to_its_private_address(
    site: Site, resolved: str, zone: str, line: str
) -> None:
    site.changes["resolve"] = lambda _, __: resolved
    if zone:
        site.has_private_zone(zone)
    site.run()
    assert site.text(HOSTS) == f"{line}127.0.0.1 localhost\n"


def test_systemd_resolved_is_configured_by_the_up_script(site: Site) -> None:
    site.host = RecordedHost({**FILES, "/run/systemd/resolve/stub-resolv.conf": ""})
    site.run()
    assert 'resolvectl dns "$dev" 10.1.0.4' in site.text(f"{DATA}/vpn/up")
    assert f"up {DATA}/vpn/up" in site.text(f"{DATA}/vpn/client.conf")
    assert site.host.read(HOSTS) == b"127.0.0.1 localhost\n"


def test_second_vpn_connection_run_makes_no_azure_calls(site: Site) -> None:
    site.run()
    site.azure.calls.clear()
    site.host.done.clear()
    site.run()
    assert (site.azure.calls, site.host.done) == ([], [])


def test_gateway_is_not_created_when_auto_provision_is_off() -> None:
    site = Site(azure__vpn__autoProvision=False)
    site.refuses("vpn-gateway-not-found")
    assert not any(call.startswith("PUT") for call in site.azure.calls)
    site.run(make=True)
    assert GATEWAY in site.azure.documents


def test_overlapping_client_pool_is_refused_before_any_azure_change() -> None:
    site = Site(azure__vpn__p2sGatewayCIDR="10.244.1.0/24")
    site.refuses("vpn-pool-overlaps")
    assert not any(call.startswith("PUT") for call in site.azure.calls)


def test_suitable_gateway_gets_our_certificate_and_keeps_other_settings() -> None:
    site = Site(azure__vpn__autoProvision=False)
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    assert site.azure.roots() == ["theirs", "aks-flex-node-edge-1-1"]
    assert site.azure.documents[GATEWAY]["properties"]["bgpSettings"] == {"asn": 65515}
    assert site.record.made == ()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (
            {"vpnClientAddressPool": {"addressPrefixes": ["172.16.0.0/24"]}},
            r"address pools are 172\.16\.0\.0/24 instead",
        ),
        ({"vpnClientProtocols": ["IkeV2"]}, "protocols are IkeV2 instead of OpenVPN"),
        ({"vpnAuthenticationTypes": ["AAD"]}, "authentication are AAD instead of Certificate"),
    ],
)
def test_gateway_with_other_settings_is_changed_only_with_adopt(
    site: Site, there: dict[str, Any], words: str
) -> None:
    site.azure.documents[GATEWAY] = theirs(**there)
    site.refuses("vpn-gateway-settings-mismatch", words)
    assert site.azure.documents[GATEWAY] == theirs(**there)
    site.run(adopt=True)
    assert site.clients["vpnClientAddressPool"]["addressPrefixes"] == ["192.168.100.0/24"]
    assert "OpenVPN" in site.clients["vpnClientProtocols"]
    assert "Certificate" in site.clients["vpnAuthenticationTypes"]
    assert "theirs" in site.azure.roots()


def test_gateway_of_another_size_is_refused_when_a_size_is_configured() -> None:
    site = Site(azure__vpn__gatewaySKU="VpnGw2AZ")
    site.azure.documents[GATEWAY] = theirs()
    with pytest.raises(FlexError, match="SKU is VpnGw1 instead of VpnGw2AZ"):
        site.run()


def test_gateway_with_another_name_is_reported(site: Site) -> None:
    subnets = site.azure.documents[NETWORK]["properties"]["subnets"]
    used = {"ipConfigurations": [{"id": f"{GATEWAY}-2/ipConfigurations/default"}], "addressPrefix": "10.1.0.224/27"}
    subnets.append({"id": SUBNET, "name": "GatewaySubnet", "properties": used})
    site.refuses("vpn-gateway-name-mismatch", "gatewayName` to aks-flex-node-2")


def test_concurrent_gateway_updates_keep_certificates_of_both_machines(site: Site) -> None:
    site.azure.documents[GATEWAY] = theirs()

    def another() -> None:
        document = site.azure.documents[GATEWAY]
        document["properties"]["vpnClientConfiguration"]["vpnClientRootCertificates"].append({"name": "another"})
        document["etag"] = '"2"'

    site.azure.meanwhile.append(another)
    site.run()
    assert site.azure.roots() == ["theirs", "another", "aks-flex-node-edge-1-1"]


def test_failed_azure_operation_is_reported_and_fixed_by_the_next_run(site: Site) -> None:
    site.azure.fail = "NoRoom"
    site.refuses("azure-operation-failed", "NoRoom")
    assert site.record.operation is None
    site.run()
    assert site.azure.documents[GATEWAY]["properties"]["provisioningState"] == "Succeeded"
    assert site.azure.roots() == ["aks-flex-node-edge-1-1"]


def test_gateway_that_is_being_updated_is_waited_for(site: Site) -> None:
    site.run()
    site.azure.documents[GATEWAY]["properties"]["provisioningState"] = "Updating"
    site.azure.documents[GATEWAY]["left"] = 4
    site.clock.slept.clear()
    site.run(renew=True)
    assert site.clock.slept


def test_vpn_renewal_replaces_the_root_certificate_and_restarts_the_tunnel(site: Site) -> None:
    numbered(site)
    site.run()
    assert not site.connection().is_renewal_due()
    site.host.done.clear()
    site.run(renew=True)
    assert site.azure.roots() == ["aks-flex-node-edge-1-2"]
    assert site.record.roots == ("aks-flex-node-edge-1-2",)
    assert RestartUnit(NAME) in site.host.done
    assert [name for name in site.host.list_dir(f"{DATA}/vpn") if name.endswith(".pem")] == [
        "aks-flex-node-edge-1-2.pem"
    ]


def test_failed_vpn_renewal_restores_the_old_tunnel(site: Site) -> None:
    numbered(site)
    site.run()
    before = site.host.read(f"{DATA}/vpn/client.conf")
    site.changes["read_tunnel"] = lambda: None
    with pytest.raises(FlexError, match="does not connect"):
        site.run(renew=True)
    assert site.host.read(f"{DATA}/vpn/client.conf") == before
    assert "aks-flex-node-edge-1-1" in site.azure.roots()
    del site.changes["read_tunnel"]
    site.run(renew=True)
    assert site.azure.roots() == ["aks-flex-node-edge-1-2"]


END = 4733510400.0  # expiry of the certificate in these tests


@pytest.mark.parametrize(
    ("content", "now", "due"),
    [
        (None, END - 200 * 86400, False),
        (None, END - 100 * 86400, True),
        (b"damaged", END - 200 * 86400, True),
        (make_client_certificate("edge-1").pem, 1e9, True),
    ],
    ids=["valid", "expires soon", "damaged", "from the future"],
)
def test_vpn_renewal_is_due_when_the_certificate_is_not_valid_for_long(
    site: Site, content: bytes | None, now: float, due: bool
) -> None:
    site.config = config_of({**SETTINGS, "azure.vpn.renewDays": 150})
    site.run()
    if content:
        site.host.apply(WriteFile(PAIR, content, 0o600))
    site.clock.seconds = now
    assert site.connection().is_renewal_due() is due


def test_vpn_renewal_keeps_the_node_joined_phase(site: Site) -> None:
    site.run()
    write(site.host, f"{DATA}/state.json", NodeState().with_phase(Phase.NODE_JOINED, node="edge-1"))
    site.run(renew=True)
    assert site.state.phase == Phase.NODE_JOINED


def test_hostile_vpn_profile_is_not_written(site: Site) -> None:
    site.changes["download"] = lambda _, __: archive(PROFILE + "up /bin/evil\n")
    site.refuses("vpn-profile-unsupported")
    assert site.host.stat(f"{DATA}/vpn/client.conf") is None


def test_vpn_connection_without_openvpn_makes_no_azure_calls(site: Site) -> None:
    site.host = empty_host()
    site.refuses("openvpn-not-found")
    assert site.azure.calls == []


def test_disconnect_removes_our_certificate_and_keeps_the_gateway(site: Site) -> None:
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    assert site.connection().remove_from_azure() == []
    assert site.azure.roots() == ["theirs"]
    assert site.connection().remove_from_azure() == []


def test_disconnect_returns_az_commands_when_azure_refuses(site: Site) -> None:
    site.run()
    site.azure.refusals = [refusal(403, "AuthorizationFailed")]
    (line,) = site.connection().remove_from_azure()
    assert line.startswith("az network vnet-gateway root-cert delete --resource-group group-1 --gateway-name")
    assert line.endswith("--name aks-flex-node-edge-1-1")


def test_gateway_is_removed_only_when_created_here_and_unused(site: Site) -> None:
    site.run()
    connection = site.connection()
    ours = list(site.clients["vpnClientRootCertificates"])
    site.clients["vpnClientRootCertificates"] = [*ours, {"name": "theirs"}]
    with pytest.raises(FlexError) as caught:
        connection.remove_gateway()
    assert caught.value.name == "vpn-gateway-in-use"
    site.clients["vpnClientRootCertificates"] = ours
    connection.remove_gateway()
    assert GATEWAY not in site.azure.documents
    assert ADDRESS not in site.azure.documents
    assert [each["name"] for each in site.azure.documents[NETWORK]["properties"]["subnets"]] == ["nodes"]


def test_remove_gateway_refuses_a_foreign_gateway(site: Site) -> None:
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    connection = site.connection()
    with pytest.raises(FlexError) as caught:
        connection.remove_gateway()
    assert caught.value.name == "vpn-gateway-not-owned"


def test_switching_gateway_removes_the_certificate_from_the_old_one(site: Site) -> None:
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    other = f"{GATEWAY}-2"
    site.azure.documents[other] = {**theirs(), "id": other}
    site.uses_gateway(other)
    site.run()
    assert site.azure.roots() == ["theirs"]
    assert (site.record.gateway, site.record.roots) == (other, ("aks-flex-node-edge-1-1",))


STUB = "/run/systemd/resolve/stub-resolv.conf"
SHOW = ("ip", "link", "show", "dev", LINK)


def test_expired_unused_vpn_certificate_is_discarded(site: Site) -> None:
    old = make_client_certificate("edge-1", days=0)
    site.host.apply(MakeDirectory(DATA, 0o700))
    site.host.apply(MakeDirectory(f"{DATA}/vpn", 0o700))
    site.host.apply(WriteFile(f"{DATA}/vpn/{old.name}.pem", old.pem, 0o600))
    site.run()
    assert site.azure.roots() == ["aks-flex-node-edge-1-1"]
    assert site.host.stat(f"{DATA}/vpn/{old.name}.pem") is None


def test_vpn_record_of_another_release_is_read_without_unknown_fields(site: Site) -> None:
    site.run()
    told = json.loads(site.text(f"{DATA}/vpn.json"))
    told["operation"] = {"what": "x", "resource": GATEWAY, "api_version": "1", "colour": "blue"}
    told["shape"] = "round"
    site.host.apply(WriteFile(f"{DATA}/vpn.json", json.dumps(told).encode(), 0o600))
    assert site.record.roots == ("aks-flex-node-edge-1-1",)
    assert site.record.operation
    assert site.record.made


def test_peered_network_overlapping_a_local_network_gets_no_route(site: Site) -> None:
    site.has_network("172.16.5.9")
    told = {"peeringState": "Connected", "remoteAddressSpace": {"addressPrefixes": ["172.16.0.0/12", "10.9.0.0/16"]}}
    site.azure.documents[NETWORK]["properties"]["virtualNetworkPeerings"] = [{"properties": told}]
    site.run()
    client = site.text(f"{DATA}/vpn/client.conf")
    assert "route 10.9.0.0 255.255.0.0" in client
    assert "route 172.16" not in client
    assert any("172.16.0.0/12" in note for note in site.notes)


def test_api_server_name_is_set_only_in_the_resolver_in_use(site: Site) -> None:
    site.run()
    assert API_NAME in site.text(HOSTS)
    site.host.apply(MakeDirectory("/run/systemd", 0o755))
    site.host.apply(MakeDirectory("/run/systemd/resolve", 0o755))
    site.host.apply(WriteFile(STUB, b""))
    site.run(renew=True)
    assert site.host.read(HOSTS) == b"127.0.0.1 localhost\n", "an old line would be believed for ever"
    site.has_private_zone("10.1.0.77")
    site.run(renew=True)
    assert site.host.stat(f"{DATA}/vpn/up") is None
    assert site.text(HOSTS).startswith("10.1.0.77 ")


def test_up_script_of_the_old_tunnel_is_kept_when_the_new_one_fails(site: Site) -> None:
    site.host = RecordedHost({**FILES, STUB: ""})
    site.run()
    del site.azure.documents[NETWORK]["properties"]["dhcpOptions"]
    site.changes["read_tunnel"] = lambda: None
    with pytest.raises(FlexError, match="does not connect"):
        site.run(renew=True)
    assert site.host.stat(f"{DATA}/vpn/up"), "the tunnel that is put back would not start without it"


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({}, False),
        ({"azure.vpn.renewDays": 60}, False),
        ({"azure.vpn.gatewayName": "aks-flex-node"}, False),
        ({"azure.vpn.gatewayName": "another"}, True),
        ({"azure.vpn.dnsServers": ["10.1.0.5"]}, True),
        ({"azure.vpn.enabled": False, "azure.vpn.gatewayName": "another"}, False),
    ],
    ids=str,
)
def test_changed_vpn_settings_are_detected(site: Site, changes: dict[str, Any], other: bool) -> None:
    site.run()
    assert local_state.is_settings_changed(site.host, config_of({**SETTINGS, **changes})) is other


@pytest.mark.parametrize(("there", "address"), [(True, "192.168.100.7"), (False, "192.168.100.2")])
def test_node_address_is_the_tunnel_address_even_while_the_vpn_is_down(there: bool, address: str) -> None:
    asked = ("ip", "-j", "route", "get", API_NAME)
    came = "192.168.100.7" if there else "10.0.0.5"  # over the default route
    answers: dict[tuple[str, ...], CommandResult] = {
        asked: CommandResult(0, json.dumps([{"prefsrc": came}])),
        SHOW: CommandResult(0 if there else 1),
    }
    host, config = RecordedHost(FILES, answers), config_of(SETTINGS)
    write(host, f"{DATA}/state.json", NodeState(address="192.168.100.2").with_phase(Phase.NODE_JOINED))
    assert local_state.with_stable_address(host, config, MACHINE).address == address


def test_renewal_uses_the_recorded_network_if_networks_cannot_be_listed() -> None:
    documents = {CLUSTER_ID: {"properties": {"nodeResourceGroup": "nodes"}}, NETWORK: start()[NETWORK]}
    listing = "/subscriptions/sub-1/resourceGroups/nodes/providers/Microsoft.Network/virtualNetworks"

    class Limited(FakeAzure):
        def send(self, method: str, where: str, *arguments: Any, **options: Any) -> ArmReply:
            if where == listing:
                raise refusal(403, "AuthorizationFailed")
            return super().send(method, where, *arguments, **options)

    azure, config = Limited(documents), config_of({"azure.targetCluster.resourceId": CLUSTER_ID})
    assert find_virtual_network(azure, config, NETWORK).id == NETWORK
    with pytest.raises(AzureCallError):
        find_virtual_network(azure, config)
