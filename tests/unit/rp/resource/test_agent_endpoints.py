"""Tests of endpoints, agent version and downgrade setting in a node's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node.settings.base import to_document
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.resource import config_generator
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.resource.properties import Properties, read_properties
from aks_flex_rp.resource.rules import ValidationContext, check_rules
from aks_flex_rp.resource.validation import validate_body
from tests.unit.agent.config.builders import node_config

G = "11111111-2222-3333-4444-555555555555"
HOME, OTHER = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
CLUSTER = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
FACTS = ClusterFacts("1.34.4", "https://api:443", "Q0E=", "10.0.0.10", tenant_id=HOME)
AZURE = {"resourceManager": "https://arm.example", "authorityHost": "https://login.example", "caCertData": "Q0I="}
WAYS = AgentEndpoints("https://flex.example", "Q0M=", {OTHER: "api://other", HOME: "api://home"}, AZURE)


def config(*, ways: AgentEndpoints = WAYS, downgrade: bool = False, **properties: Any) -> dict[str, Any]:
    read = Properties(properties)
    chosen = config_generator.effective_versions(read, FACTS.version)
    return config_generator.generate_config(
        read, CLUSTER, FACTS, "edge-1", chosen, endpoints=ways, downgrade=downgrade
    )


def principal(tenant: str | None = None) -> dict[str, Any]:
    who = {"clientId": G} | ({"clientTenant": tenant} if tenant else {})
    return {"method": "servicePrincipal", "servicePrincipal": who}


def test_config_of_managed_node_contains_provider_endpoint() -> None:
    made = config(continuousMonitoring=True, azureAuth=principal())

    assert made["provider"] == {"url": "https://flex.example", "audience": "api://home", "caCertData": "Q0M="}
    assert AZURE.items() <= made["azure"].items()
    agents = node_config(made)  # validated by the agent's rules
    assert (agents.provider.url, agents.azure.authority_host) == ("https://flex.example", "https://login.example")


@pytest.mark.parametrize(
    ("cluster", "accepted", "expected"),
    [
        (HOME, {OTHER: "api://other"}, HOME),
        ("", {HOME: "api://home"}, HOME),
        ("", {HOME: "api://home", OTHER: "api://other"}, ""),
        ("", {}, ""),
    ],
)
def test_only_accepted_tenant_is_the_default_of_a_cluster_without_one(
    cluster: str, accepted: dict[str, str], expected: str
) -> None:
    endpoints, facts = replace(WAYS, audiences=accepted), replace(FACTS, tenant_id=cluster)
    properties = Properties({"continuousMonitoring": True, "azureAuth": principal()})
    chosen = config_generator.effective_versions(properties, FACTS.version)

    made = config_generator.generate_config(properties, CLUSTER, facts, "edge-1", chosen, endpoints=endpoints)

    assert config_generator.cluster_tenant(facts, endpoints) == expected
    assert made["azure"].get("tenantId", "") == expected
    assert made["azure"]["servicePrincipal"].get("clientTenant", "") == expected


@pytest.mark.parametrize(
    ("monitored", "tenant", "known", "refused"),
    [(True, None, False, True), (True, HOME, False, False), (True, None, True, False), (False, None, False, False)],
)
def test_monitored_node_without_tenant_is_refused_at_create(
    monitored: bool, tenant: str | None, known: bool, refused: bool
) -> None:
    auth = principal(tenant)
    auth["servicePrincipal"]["clientSecret"] = "secret-of-this-test"
    properties, _ = read_properties({"continuousMonitoring": monitored, "azureAuth": auth})

    found = check_rules(properties, ValidationContext("1.34.4", tenant_known=known))

    assert [each.target for each in found] == (
        ["properties.azureAuth.servicePrincipal.clientTenant"] if refused else []
    )
    assert not refused or "cluster add" in found[0].message


def test_config_of_unmanaged_node_has_no_provider_endpoint() -> None:
    assert "provider" not in config(azureAuth=principal())


@pytest.mark.parametrize(("said", "way"), [({"useAzureAuth": True}, "certificate"), ({"method": "exec"}, "exec")])
def test_config_of_node_with_azure_auth_has_auth_method_and_provider(said: dict[str, Any], way: str) -> None:
    made = config(azureAuth=principal(), kubernetesAuth=said)

    assert made["node"]["kubelet"]["auth"] == way
    assert made["provider"]["url"] == "https://flex.example"
    assert node_config(made).node.kubelet.auth == way
    by_token = config(azureAuth=principal(), kubernetesAuth={"method": "bootstrapToken"})["node"]["kubelet"]
    assert by_token["auth"] == "bootstrapToken"
    assert "auth" not in config(azureAuth=principal())["node"]["kubelet"]


def test_config_with_certificate_on_machine_contains_its_path() -> None:
    who = {"clientId": G, "certificateOnMachine": True}
    made = config(azureAuth={"method": "servicePrincipal", "servicePrincipal": who})

    principal = node_config(made).azure.service_principal
    assert principal
    assert principal.client_certificate_file == "/etc/aks-flex-node/client.pem"
    assert principal.client_secret is None


def test_config_without_identity_has_no_azure_endpoints() -> None:
    assert not AZURE.keys() & config()["azure"].keys()
    assert AZURE.items() <= config(azureAuth={"method": "managedIdentity"})["azure"].items()


@pytest.mark.parametrize(
    ("tenant", "audience"), [(None, "api://home"), (OTHER.upper(), "api://other"), ("plant.example", "api://other")]
)
def test_provider_audience_depends_on_tenant_of_node(tenant: str | None, audience: str) -> None:
    made = config(continuousMonitoring=True, azureAuth=principal(tenant))

    assert made["provider"]["audience"] == audience


def test_config_omits_endpoints_and_cas_for_public_cloud() -> None:
    made = config(ways=AgentEndpoints("https://flex.example"), continuousMonitoring=True, azureAuth=principal())

    assert made["provider"] == {"url": "https://flex.example"}
    assert not AZURE.keys() & made["azure"].keys()


def test_agent_endpoints_ignore_unknown_fields() -> None:
    assert AgentEndpoints.from_document({**WAYS.to_document(), "by": "air"}) == WAYS


def test_config_contains_agent_version_only_if_specified() -> None:
    assert "agent" not in config()
    made = config(versions={"agent": "v0.3.0"}, nodeConfig={"unbootstrapOnDelete": False})
    assert made["agent"] == {"version": "0.3.0", "unbootstrapOnDelete": False}
    assert config_generator.config_versions(made)["agent"] == "0.3.0"
    assert "agent" not in config_generator.config_versions(config(nodeConfig={"unbootstrapOnDelete": True}))


def test_allow_downgrade_is_added_to_update_policy() -> None:
    policy = {"updatePolicy": {"paused": True}}

    assert config(nodeConfig=policy)["updatePolicy"] == {"paused": True}
    assert config(nodeConfig=policy, downgrade=True)["updatePolicy"] == {"paused": True, "allowDowngrade": True}
    assert config_generator.allows_downgrade(config(downgrade=True))
    assert not config_generator.allows_downgrade(config())


PODS, SERVICES = "10.244.0.0/16", "10.0.0.0/16"
CLUSTER_FACTS = ClusterFacts("1.34.4", "https://api", "", "10.0.0.10", ranges={PODS: "pods", SERVICES: "services"})
NETWORKS = "Microsoft.Network/virtualNetworks"
ALL = {
    "enabled": True,
    "autoProvision": True,
    "adopt": True,
    "gatewayName": "gate",
    "gatewaySKU": "VpnGw1AZ",
    "p2sGatewayCIDR": "10.9.0.0/24",
    "gatewaySubnetCIDR": "10.8.0.0/27",
    "virtualNetworkId": f"/subscriptions/{CLUSTER.subscription}/resourceGroups/g/providers/{NETWORKS}/n",
    "dnsServers": ["10.8.1.53"],
    "dnsDomains": ["plant.example"],
    "renewDays": 14,
}


def wrong(**settings: Any) -> list[str]:
    body = {"properties": {"nodeConfig": settings}}
    found = validate_body(body, "edge-1", ValidationContext("1.34.4", reserved_ranges=CLUSTER_FACTS.taken))
    assert isinstance(found, list)
    return [each.message for each in found]


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("192.168.100.1/24", "Use 192.168.100.0/24."),
        ("192.168.100.0/30", "is too small. The prefix length must be from 8 to 29."),
        ("64.0.0.0/7", "is too large"),
        ("fd00::/64", "is IPv6, which the VPN does not support."),
        ("239.0.0.0/24", "contains unusable addresses"),
        ("plant", "is not a network, for example 192.168.100.0/24."),
        ("10.0.0.0/8", f"overlaps {PODS} (the cluster's pods) and {SERVICES} (the cluster's services). Choose"),
    ],
)
def test_invalid_vpn_pool_has_exactly_one_error(pool: str, words: str) -> None:
    [message] = wrong(vpn={"p2sGatewayCIDR": pool})
    assert words in message


def test_dns_service_ip_is_reserved_when_cluster_ranges_are_unknown() -> None:
    assert ClusterFacts("1.34.4", "https://api", "", "10.0.0.10").taken == {"10.0.0.10": "the cluster's DNS service"}


def test_default_vpn_pool_is_checked_for_overlap() -> None:
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
