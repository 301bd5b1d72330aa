"""Tests of the network settings with which a node reaches its cluster: errors and generated configuration."""

from __future__ import annotations

from typing import Any

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


def test_dns_service_ip_is_reserved_when_cluster_ranges_are_unknown() -> None:
    assert ClusterFacts("1.34.4", "https://api", "", "10.0.0.10").taken == {"10.0.0.10": "the cluster's DNS service"}


def test_default_vpn_pool_matches_agent_and_is_checked_for_overlap() -> None:
    assert Vpn().p2s_gateway_cidr == network_rules.DEFAULT_VPN_POOL
    [message] = wrong(vpn={"enabled": True, "gatewaySubnetCIDR": "192.168.100.128/27"})
    assert message.startswith(
        "'192.168.100.0/24', the default pool, overlaps 192.168.100.128/27 (gatewaySubnetCIDR)."
    )


def test_config_contains_vpn_settings_unchanged() -> None:
    made = config(nodeConfig={"vpn": ALL})

    assert made["azure"]["vpn"] == ALL
    agents = node_config(made).azure.vpn
    assert to_document(agents) == ALL


def test_config_contains_only_specified_vpn_settings() -> None:
    assert config(nodeConfig={"vpn": {"enabled": True}})["azure"]["vpn"] == {"enabled": True}
    assert "vpn" not in config(nodeConfig={"vpn": {}})["azure"]


def test_config_with_vpn_enabled_contains_azure_endpoints() -> None:
    assert AZURE.items() <= config(nodeConfig={"vpn": {"enabled": True}})["azure"].items()
    assert not AZURE.keys() & config(nodeConfig={"vpn": {"enabled": False}})["azure"].keys()


def test_custom_server_url_keeps_cluster_ca() -> None:
    kubelet = config(nodeConfig={"kubelet": {"serverURL": "https://10.1.0.4"}})["node"]["kubelet"]

    assert (kubelet["serverURL"], kubelet["caCertData"]) == ("https://10.1.0.4", "Q0E=")
