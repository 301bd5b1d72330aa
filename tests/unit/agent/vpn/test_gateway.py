"""Whose gateways and certificates are whose: moving from one to another, several machines at once, and removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.vpn import disconnect
from aks_flex_node.errors import FlexError
from tests.unit.agent.builders import config_of
from tests.unit.agent.vpn.fakes import ADDRESS, GATEWAY, NETWORK, refusal
from tests.unit.agent.vpn.harness import SETTINGS, Site, theirs

if TYPE_CHECKING:
    from aks_flex_node.azure.arm import AzureCallError

OTHER = f"{GATEWAY}-2"
ROOT = "aks-flex-node-edge-1-1"


def moving() -> Site:
    """A machine that uses one gateway, and is to use another from now on."""
    site = Site()
    site.azure.documents[GATEWAY] = theirs()
    site.run()
    site.config = config_of(
        {**SETTINGS, "azure.vpn.gatewayName": "aks-flex-node-2", "azure.vpn.autoProvision": False}
    )
    site.azure.profiles = f"{OTHER}/generatevpnprofile"
    return site


def other(site: Site) -> None:
    site.azure.documents[OTHER] = {**theirs(), "id": OTHER}


def remove(site: Site) -> None:
    connection = site.connection()
    disconnect.remove_gateway(connection.book, site.config, connection.world, site.notes.append)


def test_a_gateway_that_does_not_exist_costs_nobody_the_one_before() -> None:
    site = moving()
    with pytest.raises(FlexError) as caught:
        site.run()
    assert caught.value.name == "vpn-gateway-not-found"
    assert site.azure.roots() == ["theirs", ROOT], "the tunnel that is up goes on"


def test_a_tunnel_that_does_not_come_up_costs_nobody_the_one_before() -> None:
    site = moving()
    other(site)
    site.changes["read_tunnel"] = lambda: None
    with pytest.raises(FlexError, match="does not connect"):
        site.run()
    assert site.azure.roots() == ["theirs", ROOT]


def test_whoever_goes_back_to_the_gateway_before_is_still_known_there() -> None:
    site = moving()
    with pytest.raises(FlexError):
        site.run()
    site.config = config_of(SETTINGS)
    site.azure.profiles = f"{GATEWAY}/generatevpnprofile"
    site.run()
    assert site.azure.roots() == ["theirs", ROOT]
    assert (site.record.gateway, site.record.roots, site.record.former) == (GATEWAY, (ROOT,), ())


def test_a_gateway_before_that_cannot_be_changed_is_told_and_tried_again_when_the_machine_leaves() -> None:
    site = moving()
    other(site)
    site.azure.documents[GATEWAY]["properties"]["provisioningState"] = "Updating"
    site.azure.documents[GATEWAY]["left"] = 10_000  # somebody is at work on it, and does not come to an end
    site.run()
    assert site.record.former == ((GATEWAY, ROOT),)
    assert any("root-cert delete" in note and note.endswith(ROOT) for note in site.notes)
    site.azure.documents[GATEWAY]["left"] = 1
    assert site.connection().remove_from_azure() == []
    assert site.azure.roots() == ["theirs"]


def test_a_gateway_that_was_made_from_here_and_is_used_by_others_stays_also_when_this_machine_has_moved() -> None:
    site = Site()
    site.run()
    clients = site.azure.documents[GATEWAY]["properties"]["vpnClientConfiguration"]
    clients["vpnClientRootCertificates"].append({"name": "another machine"})
    site.config = config_of({**SETTINGS, "azure.vpn.gatewayName": "aks-flex-node-2"})
    site.azure.profiles = f"{OTHER}/generatevpnprofile"
    site.run()
    with pytest.raises(FlexError, match="another machine") as caught:
        remove(site)
    assert caught.value.name == "vpn-gateway-in-use"
    assert {GATEWAY, OTHER} <= set(site.azure.documents)


def test_a_machine_that_has_moved_can_remove_what_it_made_and_is_still_to_be_forgotten_by_the_other() -> None:
    site = Site()
    site.run()
    other(site)
    site.config = config_of({**SETTINGS, "azure.vpn.gatewayName": "aks-flex-node-2"})
    site.azure.profiles = f"{OTHER}/generatevpnprofile"
    site.run()
    remove(site)
    assert not {GATEWAY, ADDRESS} & set(site.azure.documents)
    assert site.record.roots == (ROOT,)


def test_parts_of_a_gateway_that_was_never_made_are_told() -> None:
    site = Site()
    parts(site)
    site.connection().remove_from_azure()
    assert any(ADDRESS in note for note in site.notes)


def test_parts_of_a_gateway_that_was_never_made_can_be_removed() -> None:
    site = Site()
    parts(site)
    remove(site)
    assert ADDRESS not in site.azure.documents
    assert site.record.made == ()


def parts(site: Site) -> None:
    """As a run leaves them to which Azure gave an address and refused the gateway."""
    site.azure.documents[ADDRESS] = {"id": ADDRESS, "properties": {"provisioningState": "Succeeded"}}
    site.connection().book.update(gateway=GATEWAY, network=NETWORK, made=(ADDRESS,))


def test_an_address_of_somebody_else_is_not_made_anew_and_never_ours() -> None:
    site = Site()
    broken = {"id": ADDRESS, "tags": {"owner": "them"}, "properties": {"provisioningState": "Failed"}}
    site.azure.documents[ADDRESS] = broken
    site.run()
    assert site.azure.documents[ADDRESS] == broken
    assert ADDRESS not in site.record.made


@pytest.mark.parametrize("answer", [refusal(409, "Conflict"), refusal(429, "AnotherOperationInProgress")])
def test_whoever_makes_the_same_at_the_same_time_is_waited_for(answer: AzureCallError) -> None:
    site = Site()

    def another_machine() -> None:
        site.azure.documents[GATEWAY] = theirs()
        raise answer

    site.azure.before[GATEWAY] = another_machine
    site.run()
    assert site.azure.roots() == ["theirs", ROOT]


def test_what_azure_is_asked_to_adopt_keeps_the_addresses_of_other_clients() -> None:
    site = Site()
    pools = {"addressPrefixes": ["172.16.0.0/24", "192.168.100.0/24"]}
    site.azure.documents[GATEWAY] = theirs(vpnClientAddressPool=pools, vpnClientProtocols=["IkeV2"])
    site.run(adopt=True)
    clients = site.azure.documents[GATEWAY]["properties"]["vpnClientConfiguration"]
    assert clients["vpnClientAddressPool"] == pools


def test_an_id_that_azure_writes_in_another_case_is_no_other_gateway() -> None:
    site = Site()
    site.run()
    network = site.azure.documents[NETWORK]
    site.azure.documents[NETWORK] = {**network, "id": NETWORK.replace("resourceGroups", "RESOURCEGROUPS")}
    site.run(renew=True)
    assert (site.record.gateway, site.record.former) == (GATEWAY, ())
    assert site.azure.roots() == [ROOT]
