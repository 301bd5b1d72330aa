"""What a node's configuration says of where to go, of the agent, and of older versions."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.agent.config.conversion import node_config
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.resource import config_generator
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.resource.models import Properties

G = "11111111-2222-3333-4444-555555555555"
HOME, OTHER = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
CLUSTER = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
FACTS = ClusterFacts("1.34.4", "https://api:443", "Q0E=", "10.0.0.10", tenant_id=HOME)
AZURE = {"resourceManager": "https://arm.example", "authorityHost": "https://login.example", "caCertData": "Q0I="}
WAYS = AgentEndpoints("https://flex.example", "Q0M=", {OTHER: "api://other", HOME: "api://home"}, AZURE)


def config(*, ways: AgentEndpoints = WAYS, downgrade: bool = False, **properties: Any) -> dict[str, Any]:
    read = Properties.model_validate(properties)
    chosen = config_generator.effective_versions(read, FACTS.version)
    return config_generator.generate_config(
        read, CLUSTER, FACTS, "edge-1", chosen, endpoints=ways, downgrade=downgrade
    )


def principal(tenant: str | None = None) -> dict[str, Any]:
    who = {"clientId": G} | ({"clientTenant": tenant} if tenant else {})
    return {"method": "servicePrincipal", "servicePrincipal": who}


def test_a_node_that_stays_is_told_where_its_provider_is() -> None:
    made = config(continuousMonitoring=True, azureAuth=principal())

    assert made["provider"] == {"url": "https://flex.example", "audience": "api://home", "caCertData": "Q0M="}
    assert AZURE.items() <= made["azure"].items()
    agents = node_config(made)  # by the agent's own rules
    assert (agents.provider.url, agents.azure.authority_host) == ("https://flex.example", "https://login.example")


def test_a_node_that_does_not_stay_is_not() -> None:
    assert "provider" not in config(azureAuth=principal())


@pytest.mark.parametrize(
    ("said", "way"), [({"useAzureAuth": True}, "exec"), ({"method": "certificate"}, "certificate")]
)
def test_a_node_that_joins_by_its_identity_is_told_how_and_where_to_say_who_it_is(
    said: dict[str, Any], way: str
) -> None:
    made = config(azureAuth=principal(), kubernetesAuth=said)

    assert made["node"]["kubelet"]["auth"] == way
    assert made["provider"]["url"] == "https://flex.example"
    assert node_config(made).node.kubelet.auth == way
    assert "auth" not in config(azureAuth=principal(), kubernetesAuth={"method": "bootstrapToken"})["node"]["kubelet"]


def test_a_certificate_that_is_on_the_machine_is_found_there() -> None:
    who = {"clientId": G, "certificateOnMachine": True}
    made = config(azureAuth={"method": "servicePrincipal", "servicePrincipal": who})

    principal = node_config(made).azure.service_principal
    assert principal
    assert principal.client_certificate_file == "/etc/aks-flex-node/client.pem"
    assert principal.client_secret is None


def test_a_node_without_an_identity_does_not_go_to_azure() -> None:
    assert not AZURE.keys() & config()["azure"].keys()
    assert AZURE.items() <= config(azureAuth={"method": "managedIdentity"})["azure"].items()


@pytest.mark.parametrize(
    ("tenant", "audience"), [(None, "api://home"), (OTHER.upper(), "api://other"), ("plant.example", "api://other")]
)
def test_tokens_are_made_out_to_whom_the_service_is_in_the_nodes_tenant(tenant: str | None, audience: str) -> None:
    made = config(continuousMonitoring=True, azureAuth=principal(tenant))

    assert made["provider"]["audience"] == audience


def test_where_the_public_authorities_do_nothing_more_is_said() -> None:
    made = config(ways=AgentEndpoints("https://flex.example"), continuousMonitoring=True, azureAuth=principal())

    assert made["provider"] == {"url": "https://flex.example"}
    assert not AZURE.keys() & made["azure"].keys()


def test_ways_are_read_as_they_were_written_also_by_an_older_program() -> None:
    assert AgentEndpoints.from_document({**WAYS.to_document(), "by": "air"}) == WAYS


def test_the_agent_has_a_version_only_when_it_was_given_one() -> None:
    assert "agent" not in config()
    made = config(versions={"agent": "v0.3.0"}, nodeConfig={"unbootstrapOnDelete": False})
    assert made["agent"] == {"version": "0.3.0", "unbootstrapOnDelete": False}
    assert config_generator.config_versions(made)["agent"] == "0.3.0"
    assert "agent" not in config_generator.config_versions(config(nodeConfig={"unbootstrapOnDelete": True}))


def test_older_versions_are_allowed_beside_what_the_policy_says() -> None:
    policy = {"updatePolicy": {"paused": True}}

    assert config(nodeConfig=policy)["updatePolicy"] == {"paused": True}
    assert config(nodeConfig=policy, downgrade=True)["updatePolicy"] == {"paused": True, "allowDowngrade": True}
    assert config_generator.allows_downgrade(config(downgrade=True))
    assert not config_generator.allows_downgrade(config())
