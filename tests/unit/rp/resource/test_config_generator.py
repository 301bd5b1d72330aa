"""Tests of a node's representation, and of its generated configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_rp.arm import errors
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.resource import config_generator, view
from aks_flex_rp.resource.config_generator import NodeSecrets
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.store.model import Node

CLUSTER = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
FACTS = ClusterFacts("1.34.4", "https://api:443", "Q0E=", "10.0.0.10", location="westeurope", tenant_id="tenant")
NODE = Node(CLUSTER.key, "edge-1", "Edge-1", 17, '"17"', {"continuousMonitoring": True}, {"a": 1}, created=1000.0)
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2024-02-26T15:30:45Z"}
G = "11111111-2222-3333-4444-555555555555"


def config(**properties: Any) -> dict[str, Any]:
    read = Properties(properties)
    chosen = config_generator.effective_versions(read, FACTS.version)
    return config_generator.generate_config(read, CLUSTER, FACTS, "edge-1", chosen)


@pytest.mark.parametrize(
    ("managed", "silent", "status"), [(True, 120, "True"), (True, 121, "Unknown"), (False, 10_000, "True")]
)
def test_ready_becomes_unknown_when_managed_node_is_silent_too_long(managed: bool, silent: int, status: str) -> None:
    reported = {"conditions": [READY, {"type": "Other", "status": "True"}]}
    node = replace(NODE, properties={"continuousMonitoring": managed}, status=reported, last_seen=5000.0)

    first, other = view.node_status(node, 5000.0 + silent)["conditions"]

    assert first["status"] == status
    assert other["status"] == "True"


def test_node_that_never_reported_is_not_silent() -> None:
    [ready] = view.node_status(NODE, 1e9)["conditions"]

    assert ready["reason"] == "NeverReported"


def test_node_that_reports_no_ready_condition_is_unknown() -> None:
    [ready] = view.node_status(replace(NODE, status={"conditions": []}), 2000.0)["conditions"]

    assert (ready["status"], ready["reason"]) == ("Unknown", "NotReported")


@pytest.mark.parametrize(
    ("state", "now", "shown"),
    [
        ("Created", 99.0, "Created"),
        ("Created", 101.0, "Failed"),
        ("ConfigFetched", 101.0, "Failed"),
        ("BootstrapAttempted", 101.0, "BootstrapAttempted"),
        ("Joined", 101.0, "Joined"),
    ],
)
def test_unused_expired_config_url_is_shown_as_failed_join(state: str, now: float, shown: str) -> None:
    told = view.node_status(replace(NODE, join=JoinState.from_document({"state": state, "urlExpires": 100.0})), now)

    assert told["joinState"] == shown
    assert ("regenerateToken" in told.get("joinFailure", "")) is (shown == "Failed")


def test_node_view_does_not_modify_stored_status() -> None:
    node = replace(NODE, status={"conditions": [READY]}, last_seen=1.0)

    view.node_resource(node, CLUSTER, 1e9)

    assert node.status == {"conditions": [READY]}


def test_config_contains_cluster_facts_and_defaults() -> None:
    made = config()

    assert made["azure"]["targetCluster"] == {"resourceId": str(CLUSTER), "location": "westeurope"}
    assert made["node"]["kubelet"] == {
        "serverURL": "https://api:443",
        "caCertData": "Q0E=",
        "clusterDomain": "cluster.local",
        "serverTLSBootstrap": True,
        "dnsServiceIP": "10.0.0.10",
    }
    assert made["node"]["maxPods"] == 110
    assert "driftPolicy" not in made


def test_node_properties_override_cluster_facts() -> None:
    made = config(nodeConfig={"kubelet": {"clusterDomain": "plant.example"}}, versions={"kubernetes": "v1.33.1"})

    assert made["node"]["kubelet"]["clusterDomain"] == "plant.example"
    assert made["kubernetes"] == {"version": "1.33.1"}


def test_config_omits_identity_fields_used_only_by_provider() -> None:
    arc = config(azureAuth={"method": "arc", "arc": {"machineName": "edge", "principalId": G}})
    managed = config(azureAuth={"method": "managedIdentity", "managedIdentity": {"principalId": G}})
    principal = config(azureAuth={"method": "servicePrincipal", "servicePrincipal": {"clientId": G}})

    assert arc["azure"]["arc"] == {"enabled": True, "machineName": "edge"}
    assert config(azureAuth={"method": "arc"})["azure"]["arc"] == {"enabled": True, "machineName": "edge-1"}
    assert managed["azure"]["managedIdentity"] == {}
    assert principal["azure"]["servicePrincipal"] == {"clientId": G, "clientTenant": "tenant"}


def test_bundle_contains_secrets_and_config_does_not() -> None:
    made = config(azureAuth={"method": "servicePrincipal", "servicePrincipal": {"clientId": G}})
    secrets = NodeSecrets("abcdef.0123456789abcdef", "hush")

    bundle = config_generator.build_bundle(made, 17, secrets)

    assert bundle["configVersion"] == "17"
    assert bundle["config"]["azure"]["bootstrapToken"] == {"token": "abcdef.0123456789abcdef"}
    assert bundle["config"]["azure"]["servicePrincipal"]["clientSecret"] == "hush"
    assert "hush" not in str(made)
    assert "hush" not in repr(secrets)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (("properties", "nodeConfig", "taints", 0, "key"), "properties.nodeConfig.taints[0].key"),
        (("labels", "example.com/a"), "labels['example.com/a']"),
        (("labels", "it's"), "labels['it\\'s']"),
        (("$filter",), "$filter"),
    ],
)
def test_json_path_is_formatted_with_indices_and_quoted_keys(steps: tuple[str | int, ...], text: str) -> None:
    assert errors.json_path(*steps) == text


def test_quoted_values_in_messages_are_truncated() -> None:
    assert len(errors.quoted("x" * 10_000)) < 100


def test_unspecified_component_version_is_never_downgraded() -> None:
    nothing = Properties({})
    tested = config_generator.effective_versions(nothing, "1.34.4")
    newer = {**tested, "containerd": "9.9.9", "runc": "0.0.1"}

    chosen = config_generator.effective_versions(nothing, "1.34.4", newer)

    assert (chosen["containerd"], chosen["runc"]) == ("9.9.9", tested["runc"])
