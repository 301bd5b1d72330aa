"""Tests of a tunnel when clocks, networks, releases and settings change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.components.vpn import HOSTS, LINK
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase, write
from aks_flex_node.agent.vpn import local_state
from aks_flex_node.agent.vpn.client_certificate import make_client_certificate
from aks_flex_node.agent.vpn.virtual_network import find_virtual_network
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA, MACHINE, config_of
from tests.unit.agent.config.builders import CLUSTER_ID
from tests.unit.agent.vpn.fakes import API_NAME, GATEWAY, NETWORK, FakeAzure, refusal, start
from tests.unit.agent.vpn.harness import FILES, SETTINGS, Site

if TYPE_CHECKING:
    from aks_flex_node.azure.operations import OperationReply

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
        def send(
            self, method: str, where: str, api_version: str = "", body: Any = None, if_match: str = ""
        ) -> OperationReply:
            if where == listing:
                raise refusal(403, "AuthorizationFailed")
            return super().send(method, where, api_version, body, if_match)

    azure, config = Limited(documents), config_of({"azure.targetCluster.resourceId": CLUSTER_ID})
    assert find_virtual_network(azure, config, NETWORK).id == NETWORK
    with pytest.raises(AzureCallError):
        find_virtual_network(azure, config)
