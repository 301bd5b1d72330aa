"""The ways by which a node reaches its cluster: what is refused in which words, and what the agent is told."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.agent.config.azure_models import Vpn
from aks_flex_node.agent.config.base_model import to_document
from aks_flex_node.agent.config.conversion import node_config
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.resource import network_rules
from aks_flex_rp.resource.models import NodeConfigProperties
from tests.unit.rp.resource.test_agent_endpoints import AZURE, config

PODS, SERVICES = "10.244.0.0/16", "10.0.0.0/16"
FACTS = ClusterFacts("1.34.4", "https://api", "", "10.0.0.10", ranges={PODS: "pods", SERVICES: "services"})
ALL = {
    "enabled": True,
    "autoProvision": True,
    "adopt": True,
    "gatewayName": "gate",
    "gatewaySKU": "VpnGw1AZ",
    "p2sGatewayCIDR": "10.9.0.0/24",
    "gatewaySubnetCIDR": "10.8.0.0/27",
    "virtualNetworkId": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/n",
    "dnsServers": ["10.8.1.53"],
    "dnsDomains": ["plant.example"],
    "renewDays": 14,
}


def wrong(**settings: Any) -> list[str]:
    found = network_rules.check_network(NodeConfigProperties.model_validate(settings), FACTS.taken)
    return [each.message for each in found]


@pytest.mark.parametrize(
    ("pool", "others"),
    [
        ("10.0.0.0/8", f"{PODS} (the cluster's pods) and {SERVICES} (the cluster's services). Choose"),
        ("10.244.1.0/24", f"{PODS} (the cluster's pods). Choose"),
        ("10.0.255.0/24", f"{SERVICES} (the cluster's services). Choose"),
    ],
)
def test_addresses_of_the_cluster_are_not_for_vpn_clients(pool: str, others: str) -> None:
    [message] = wrong(vpn={"p2sGatewayCIDR": pool})

    assert f"'{pool}' overlaps {others}" in message


def test_of_a_cluster_whose_ranges_nobody_knows_its_dns_service_counts() -> None:
    assert ClusterFacts("1.34.4", "https://api", "", "10.0.0.10").taken == {"10.0.0.10": "the cluster's DNS service"}


def test_the_usual_pool_is_that_of_the_agent_and_is_judged_as_one_that_was_said() -> None:
    assert Vpn().p2s_gateway_cidr == network_rules.DEFAULT_VPN_POOL
    [message] = wrong(vpn={"enabled": True, "gatewaySubnetCIDR": "192.168.100.128/27"})
    assert message.startswith(
        "'192.168.100.0/24', the default pool, overlaps 192.168.100.128/27 (gatewaySubnetCIDR)."
    )


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("192.168.100.1/24", "you may mean 192.168.100.0/24."),
        ("192.168.100.0/30", "is too small. The prefix length must be from 8 to 29."),
        ("64.0.0.0/7", "is too large"),
        ("fd00::/64", "is an IPv6 network, which the VPN does not support."),
        ("239.0.0.0/24", "contains unusable addresses"),
        ("plant", "is not a network, like 192.168.100.0/24."),
    ],
)
def test_what_is_wrong_with_a_network_is_said_once(pool: str, words: str) -> None:
    [message] = wrong(vpn={"p2sGatewayCIDR": pool})

    assert words in message


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://10.1.0.4", "is not encrypted"),
        ("https://me:hush@10.1.0.4", "name or password"),
        ("https://10.1.0.4/hush", "without user, path, query or fragment"),
    ],
)
def test_the_address_of_an_api_server_is_nothing_but_that_and_is_not_repeated(url: str, words: str) -> None:
    [message] = wrong(kubelet={"serverURL": url})

    assert words in message
    assert "hush" not in message


def test_an_agent_is_told_of_its_vpn_as_it_was_said() -> None:
    made = config(nodeConfig={"vpn": ALL})

    assert made["azure"]["vpn"] == ALL
    agents = node_config(made).azure.vpn
    assert to_document(agents) == ALL


def test_only_what_was_said_of_a_vpn_is_told() -> None:
    assert config(nodeConfig={"vpn": {"enabled": True}})["azure"]["vpn"] == {"enabled": True}
    assert "vpn" not in config(nodeConfig={"vpn": {}})["azure"]


def test_the_gateway_of_a_node_without_an_identity_is_in_the_private_cloud_too() -> None:
    assert AZURE.items() <= config(nodeConfig={"vpn": {"enabled": True}})["azure"].items()
    assert not AZURE.keys() & config(nodeConfig={"vpn": {"enabled": False}})["azure"].keys()


def test_a_node_may_reach_the_api_server_elsewhere_and_trusts_the_same_authority() -> None:
    kubelet = config(nodeConfig={"kubelet": {"serverURL": "https://10.1.0.4"}})["node"]["kubelet"]

    assert (kubelet["serverURL"], kubelet["caCertData"]) == ("https://10.1.0.4", "Q0E=")
