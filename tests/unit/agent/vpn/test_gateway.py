"""Tests of the ownership of gateways and certificates: switches, concurrent machines, removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import FlexError
from tests.unit.agent.vpn.fakes import ADDRESS, GATEWAY, NETWORK, refusal
from tests.unit.agent.vpn.harness import Site, theirs

if TYPE_CHECKING:
    from aks_flex_node.azure.arm import AzureCallError

OTHER = f"{GATEWAY}-2"
ROOT = "aks-flex-node-edge-1-1"


def site_with_changed_gateway() -> Site:
    """Returns a machine that uses one gateway and is configured for another."""
    site = Site()
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    site.uses_gateway(OTHER, **{"azure.vpn.autoProvision": False})
    return site


def other(site: Site) -> None:
    site.azure.documents[OTHER] = {**theirs(), "id": OTHER}


def remove(site: Site) -> None:
    site.connection().remove_gateway()


def test_failed_new_tunnel_keeps_the_certificate_on_the_old_gateway() -> None:
    site = site_with_changed_gateway()
    other(site)
    site.changes["read_tunnel"] = lambda: None
    with pytest.raises(FlexError, match="does not connect"):
        site.run()
    assert site.azure.roots() == ["theirs", ROOT]


def test_missing_new_gateway_leaves_the_old_one_usable() -> None:
    site = site_with_changed_gateway()
    site.refuses("vpn-gateway-not-found")
    assert site.azure.roots() == ["theirs", ROOT], "the tunnel that is up goes on"
    site.uses_gateway(GATEWAY)
    site.run()
    assert site.azure.roots() == ["theirs", ROOT]
    assert (site.record.gateway, site.record.roots, site.record.former) == (GATEWAY, (ROOT,), ())


def test_busy_old_gateway_is_cleaned_up_later_by_disconnect() -> None:
    site = site_with_changed_gateway()
    other(site)
    site.azure.documents[GATEWAY]["properties"]["provisioningState"] = "Updating"
    site.azure.documents[GATEWAY]["left"] = 10_000  # another operation on it does not end
    site.run()
    assert site.record.former == ((GATEWAY, ROOT),)
    assert any("root-cert delete" in note and note.endswith(ROOT) for note in site.notes)
    site.azure.documents[GATEWAY]["left"] = 1
    assert site.connection().remove_from_azure() == []
    assert site.azure.roots() == ["theirs"]


def test_gateway_created_here_is_kept_while_other_machines_use_it(site: Site) -> None:
    site.run()
    site.clients["vpnClientRootCertificates"].append({"name": "another machine"})
    site.uses_gateway(OTHER)
    site.run()
    with pytest.raises(FlexError, match="another machine") as caught:
        remove(site)
    assert caught.value.name == "vpn-gateway-in-use"
    assert {GATEWAY, OTHER} <= set(site.azure.documents)


def test_machine_on_another_gateway_can_remove_the_gateway_it_created(site: Site) -> None:
    site.run()
    other(site)
    site.uses_gateway(OTHER)
    site.run()
    remove(site)
    assert not {GATEWAY, ADDRESS} & set(site.azure.documents)
    assert site.record.roots == (ROOT,)


@pytest.mark.parametrize("by", ["disconnect", "remove-gateway"])
def test_leftover_parts_of_an_uncreated_gateway_are_reported_or_deleted(site: Site, by: str) -> None:
    """Azure created the public IP address and rejected the gateway."""
    site.azure.documents[ADDRESS] = {"id": ADDRESS, "properties": {"provisioningState": "Succeeded"}}
    site.connection().records.update(gateway=GATEWAY, network=NETWORK, made=(ADDRESS,))
    if by == "disconnect":
        site.connection().remove_from_azure()
        assert any(ADDRESS in note for note in site.notes)
    else:
        remove(site)
        assert ADDRESS not in site.azure.documents
        assert site.record.made == ()


def test_failed_foreign_public_ip_is_neither_recreated_nor_owned(site: Site) -> None:
    broken = {"id": ADDRESS, "tags": {"owner": "them"}, "properties": {"provisioningState": "Failed"}}
    site.azure.documents[ADDRESS] = broken
    site.run()
    assert site.azure.documents[ADDRESS] == broken
    assert ADDRESS not in site.record.made


@pytest.mark.parametrize("answer", [refusal(409, "Conflict"), refusal(429, "AnotherOperationInProgress")])
def test_gateway_created_concurrently_by_another_machine_is_used(site: Site, answer: AzureCallError) -> None:

    def another_machine() -> None:
        site.azure.documents[GATEWAY] = theirs()
        raise answer

    site.azure.before[GATEWAY] = another_machine
    site.run()
    assert site.azure.roots() == ["theirs", ROOT]


def test_adopting_a_gateway_keeps_address_pools_of_other_clients(site: Site) -> None:
    pools = {"addressPrefixes": ["172.16.0.0/24", "192.168.100.0/24"]}
    site.azure.documents[GATEWAY] = theirs(vpnClientAddressPool=pools, vpnClientProtocols=["IkeV2"])
    site.run(adopt=True)
    assert site.clients["vpnClientAddressPool"] == pools


def test_resource_id_in_another_case_is_the_same_gateway(site: Site) -> None:
    site.run()
    network = site.azure.documents[NETWORK]
    site.azure.documents[NETWORK] = {**network, "id": NETWORK.replace("resourceGroups", "RESOURCEGROUPS")}
    site.run(renew=True)
    assert (site.record.gateway, site.record.former) == (GATEWAY, ())
    assert site.azure.roots() == [ROOT]
