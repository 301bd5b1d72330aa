"""Tests that the examples of the design document give the documented responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api.fake_clusters import SEED

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.traffic_recorder import Answer

CREATE: dict[str, Any] = {
    "properties": {
        "continuousMonitoring": True,
        "azureAuth": {
            "method": "servicePrincipal",
            "servicePrincipal": {
                "clientId": "11111111-2222-3333-4444-555555555555",
                "clientSecret": "your-secret-here",
                "clientTenant": "your-tenant-here",
            },
        },
        "kubernetesAuth": {"useAzureAuth": True},
        "versions": {"kubernetes": "1.30.0", "containerd": "1.7.1"},
        "nodeConfig": {"maxPods": 50, "labels": {"environment": "prod"}},
    }
}


@pytest.fixture
def seed(admin: Api) -> Api:
    return admin.at(SEED)


@pytest.fixture
def made(seed: Api, name: str) -> Answer:
    """Returns the response to the creation of a node."""
    return seed.put(name, CREATE, url=True)


def test_create_returns_config_url(made: Answer) -> None:
    assert made.status == 201
    assert made.properties["provisioningState"] == "Succeeded"
    assert made.properties["configVersion"].isdigit()
    assert made.properties["configUrl"].startswith("https://")
    assert made.properties["configUrlExpires"].endswith("Z")


def test_config_bundle_contains_all_required_settings(seed: Api, made: Answer) -> None:
    fetched = seed.fetch(made.properties["configUrl"])

    bundle = fetched.json
    assert fetched.status == 200
    assert bundle["configVersion"] == made.properties["configVersion"]
    config = bundle["config"]
    assert config["continuousMonitoring"] is True
    assert config["azure"]["servicePrincipal"] == CREATE["properties"]["azureAuth"]["servicePrincipal"]
    assert config["azure"]["targetCluster"] == {"resourceId": str(SEED), "location": "westeurope"}
    assert {"subscriptionId", "tenantId"} <= config["azure"].keys()
    assert config["kubernetes"] == {"version": "1.30.0"}
    assert config["node"]["maxPods"] == 50
    assert {"dnsServiceIP", "serverURL", "caCertData"} <= config["node"]["kubelet"].keys()


def test_update_returns_whole_resource_without_secret(seed: Api, name: str, made: Answer) -> None:
    wanted = {**CREATE["properties"], "versions": {"kubernetes": "1.31.0", "containerd": "1.7.2"}}

    updated = seed.put(name, {"properties": wanted})

    assert updated.status == 200
    assert updated.json["name"] == name
    shown = updated.properties
    assert int(shown["configVersion"]) > int(made.properties["configVersion"])
    principal = {key: value for key, value in _principal(CREATE).items() if key != "clientSecret"}
    expected = {**wanted, "azureAuth": {"method": "servicePrincipal", "servicePrincipal": principal}}
    assert {key: shown[key] for key in expected} == expected
    assert "configUrl" not in shown
    assert "configUrlExpires" not in shown


def test_get_returns_node_with_config_and_status(seed: Api, name: str, made: Answer) -> None:
    version = made.properties["configVersion"]
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2024-02-26T15:30:45Z"}
    told = {"lastConfigApplied": "2024-02-26T14:00:00Z", "appliedConfigVersion": version}
    seed.report(name, {"conditions": [condition], **told})

    shown = seed.get(name)

    assert shown.json["name"] == name
    config = shown.properties["config"]
    assert config["azure"]["targetCluster"]["resourceId"] == str(SEED)
    assert config["kubernetes"] == {"version": "1.30.0"}
    assert config["node"]["kubelet"]["serverURL"]
    assert "clientSecret" not in str(config)
    status = shown.properties["status"]
    assert status["conditions"][:1] == [condition]
    assert [each["type"] for each in status["conditions"][1:]] == ["VersionsTested"]  # the document has 1.30.0
    assert {key: status[key] for key in told} == told


def test_list_returns_nodes_with_status(seed: Api, name: str, made: Answer) -> None:
    seed.report(name, {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]})

    listed = seed.list()

    [node] = [each for each in listed.json["value"] if each["name"] == name]
    assert node["properties"]["provisioningState"] == "Succeeded"
    ready, _ = node["properties"]["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
    assert "config" not in node["properties"]


def test_delete_returns_cleanup_summary(seed: Api, name: str, made: Answer) -> None:
    gone = seed.delete(name)

    assert gone.status == 200
    assert gone.json == {
        "status": "Deleted",
        "cleanup": {"configUrlRevoked": True, "bootstrapTokenRevoked": True, "monitoringDisabled": True},
        "note": "ARM resource deleted. Node machine lifecycle (stop/start/destroy) must be managed separately.",
    }
    assert seed.get(name).status == 404
    assert seed.delete(name).status == 204


def test_regenerate_token_returns_new_config_url(seed: Api, name: str, made: Answer) -> None:
    renewed = seed.regenerate(name)

    assert renewed.status == 200
    assert renewed.json.keys() == {"configVersion", "configUrl", "configUrlExpires"}
    assert int(renewed.json["configVersion"]) > int(made.properties["configVersion"])
    assert renewed.json["configUrl"] != made.properties["configUrl"]


def _principal(body: dict[str, Any]) -> Any:
    return body["properties"]["azureAuth"]["servicePrincipal"]
