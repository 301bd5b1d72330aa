"""The remedies of errors of the VPN gateway and its network in Azure are followed, and the VPN then connects."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.vpn.connection import manual_command
from aks_flex_node.host.host import CommandResult
from tests.remedies.catalogue import advice, command
from tests.remedies.vpn_harness import TunnelSite, failure, run_az
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import CLUSTER_ID
from tests.unit.agent.vpn.fakes import GATEWAY, NETWORK, refusal
from tests.unit.agent.vpn.harness import SETTINGS, theirs

if TYPE_CHECKING:
    from aks_flex_node.azure.arm import AzureCallError

OTHER = f"{GATEWAY}-2"
BOOTSTRAP = "aks-flex-node bootstrap-vpn"


@pytest.fixture
def site() -> TunnelSite:
    return TunnelSite()


def use(site: TunnelSite, **changes: object) -> None:
    """Changes settings below `azure.vpn`, and the gateway whose profile Azure generates."""
    site.config = config_of({**SETTINGS, **{f"azure.vpn.{name}": value for name, value in changes.items()}})
    name = str(changes.get("gatewayName", "aks-flex-node"))
    site.azure.profiles = f"{GATEWAY.rpartition('/')[0]}/{name}/generatevpnprofile"


def ranges(*local: str) -> CommandResult:
    addresses = [{"family": "inet", "local": each, "prefixlen": 24} for each in local]
    return CommandResult(0, json.dumps([{"ifname": "eth0", "addr_info": addresses}]))


def test_vpn_connects_after_the_cluster_is_set(site: TunnelSite) -> None:
    without = {key: value for key, value in SETTINGS.items() if key != "azure.targetCluster.resourceId"}
    site.config = config_of(without)
    site.fails("vpn-cluster-id-missing")

    site.config = config_of({**without, "azure.targetCluster.resourceId": CLUSTER_ID})
    site.bootstrap_vpn()


def test_busy_gateway_is_changed_when_others_have_finished(site: TunnelSite) -> None:
    site.azure.documents[GATEWAY] = theirs()
    busy: list[AzureCallError] = [refusal(409, "AnotherOperationInProgress")] * 10

    def conflict() -> None:
        if busy:
            site.azure.before[GATEWAY] = conflict
            raise busy.pop()

    site.azure.before[GATEWAY] = conflict
    site.fails("vpn-gateway-busy")

    site.bootstrap_vpn()


@pytest.mark.remedy("vpn-gateway-settings-mismatch")
@pytest.mark.parametrize("way", ["change the configuration", "change the gateway"])
def test_gateway_with_other_settings_is_matched_or_adopted(site: TunnelSite, way: str) -> None:
    site.azure.documents[GATEWAY] = theirs(vpnClientAddressPool={"addressPrefixes": ["172.16.0.0/24"]})
    site.fails("vpn-gateway-settings-mismatch")

    if way == "change the configuration":
        advice("vpn-gateway-settings-mismatch", "Change the configuration to match the gateway")
        use(site, p2sGatewayCIDR="172.16.0.0/24")
        site.bootstrap_vpn()
    else:
        site.bootstrap_vpn(command("vpn-gateway-settings-mismatch", f"{BOOTSTRAP} --adopt"))


@pytest.mark.remedy("vpn-gateway-failed")
def test_failed_gateway_of_others_is_used_after_its_update(site: TunnelSite) -> None:
    site.azure.documents[GATEWAY] = theirs()
    site.azure.documents[GATEWAY]["properties"]["provisioningState"] = "Failed"
    error = failure(site.bootstrap_vpn)
    assert error.name == "vpn-gateway-failed"
    assert GATEWAY in error.message

    run_az(site, command("vpn-gateway-failed", "az network vnet-gateway update", ID=GATEWAY))
    site.bootstrap_vpn()


@pytest.mark.remedy("vpn-gateway-full")
def test_full_gateway_has_room_after_a_certificate_is_deleted(site: TunnelSite) -> None:
    roots = [{"name": f"n{each}", "properties": {"publicCertData": "YWJj"}} for each in range(20)]
    site.azure.documents[GATEWAY] = theirs(vpnClientRootCertificates=roots)
    site.fails("vpn-gateway-full")

    values = {"GROUP": "group-1", "NAME": "aks-flex-node", "CERTIFICATE": "n3"}
    delete = command("vpn-gateway-full", "az network vnet-gateway root-cert delete", **values)
    assert delete == shlex.split(manual_command(GATEWAY, "n3"))
    run_az(site, delete)
    site.bootstrap_vpn()
    assert "n3" not in site.azure.roots()


@pytest.mark.parametrize("adopt", [False, True])
def test_policy_based_gateway_is_replaced_by_another(site: TunnelSite, adopt: bool) -> None:
    site.azure.documents[GATEWAY] = theirs()
    site.azure.documents[GATEWAY]["properties"]["vpnType"] = "PolicyBased"
    argv = ("aks-flex-node", "bootstrap-vpn", *(("--adopt",) if adopt else ()))
    site.fails("vpn-gateway-unsupported", argv)

    site.azure.documents[OTHER] = {**theirs(), "id": OTHER}
    use(site, gatewayName="aks-flex-node-2")
    site.bootstrap_vpn(argv)

    assert site.record.gateway == OTHER


def test_network_is_found_after_its_id_is_set(site: TunnelSite) -> None:
    del site.azure.documents[CLUSTER_ID]["properties"]["agentPoolProfiles"]
    site.fails("vpn-network-not-found")

    use(site, virtualNetworkId=NETWORK)
    site.bootstrap_vpn()


@pytest.mark.remedy("vpn-network-overlaps")
@pytest.mark.parametrize("way", ["local network", "network in Azure"])
def test_overlapping_network_is_used_after_one_side_changes(site: TunnelSite, way: str) -> None:
    site.world.answers["ip", "-j", "addr"] = ranges("10.1.0.9")
    site.fails("vpn-network-overlaps")

    advice("vpn-network-overlaps", "Change the address range of the local network or of the network in Azure")
    if way == "local network":
        site.world.answers["ip", "-j", "addr"] = ranges("172.20.0.9")
    else:
        properties: dict[str, Any] = site.azure.documents[NETWORK]["properties"]
        properties["addressSpace"]["addressPrefixes"] = ["10.9.0.0/24"]
        properties["subnets"][0]["properties"]["addressPrefix"] = "10.9.0.0/25"
    site.bootstrap_vpn()


@pytest.mark.parametrize("way", ["more addresses", "free range"])
def test_gateway_subnet_fits_after_room_is_made_or_named(way: str) -> None:
    site = TunnelSite(**({"azure__vpn__gatewaySubnetCIDR": "10.8.0.0/27"} if way == "free range" else {}))
    space = site.azure.documents[NETWORK]["properties"]["addressSpace"]["addressPrefixes"]
    nodes = site.azure.documents[NETWORK]["properties"]["subnets"][0]["properties"]
    if way == "more addresses":
        nodes["addressPrefix"] = space[0]  # nothing is free
    site.fails("vpn-subnet-invalid")

    if way == "more addresses":
        space.append("10.9.0.0/24")
    else:
        use(site, gatewaySubnetCIDR="10.1.0.128/27")
    site.bootstrap_vpn()
