"""Tests of template execution: order of resources, failures, and the stored result."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.deployments.evaluation import DeploymentTarget
from aks_flex_lab.arm.deployments.execution import DeploymentRun, ProviderRefusal
from aks_flex_lab.arm.deployments.history import DeploymentHistory
from aks_flex_lab.arm.deployments.templates import plan_deployment
from aks_flex_lab.arm.deployments.what_if import what_if_changes

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.arm.deployments.execution import DeploymentOutputs

PLACE = DeploymentTarget("sub-1", "tenant-1", "edge", "westeurope", "first")
KIND = "Microsoft.ContainerService/managedClusters/flexNodeConfig"


@dataclass
class Cloud:
    """Simulated resources by name; some names are rejected."""

    refused: frozenset[str] = frozenset()
    asked: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    async def request(self, method: str, path: str, version: str, body: Any = None) -> tuple[int, Any]:
        name = path.rpartition("/")[2]
        self.asked.append((method, name))
        await asyncio.sleep(0)
        if name in self.refused or (method == "GET" and name not in self.kept):
            raise ProviderRefusal(400 if method == "PUT" else 404, {"code": "No", "message": f"{version} no"})
        if method == "PUT":
            self.kept[name] = body
        return (201, body) if method == "PUT" else (200, self.kept.get(name, {"configUrl": "canary"}))


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"type": KIND, "apiVersion": "1", "name": f"plant/{name}", "properties": {}, **more}


def run(
    cloud: Cloud, *resources: dict[str, Any], **outputs: Any
) -> tuple[DeploymentRun, list[Any], DeploymentOutputs]:
    operations: list[Any] = []
    made = DeploymentRun(
        plan_deployment({"resources": [*resources], "outputs": outputs}, {}, PLACE),
        cloud,
        "/first",
        operations.append,
    )
    return made, operations, asyncio.run(made.run())


def test_resources_are_created_after_their_dependencies() -> None:
    cloud = Cloud()
    done, operations, _ = run(cloud, node("c", dependsOn=["plant/b"]), node("b", dependsOn=["plant/a"]), node("a"))
    assert cloud.asked == [("PUT", "a"), ("PUT", "b"), ("PUT", "c")]
    assert [each.rpartition("/")[2] for each in done.made] == ["a", "b", "c"]
    assert {each["properties"]["provisioningState"] for each in operations} == {"Succeeded"}


def test_failed_resource_skips_only_its_dependents() -> None:
    cloud = Cloud(refused=frozenset({"a"}))
    done, operations, _ = run(cloud, node("a"), node("b", dependsOn=["plant/a"]), node("c"))
    assert sorted(cloud.asked) == [("PUT", "a"), ("PUT", "c")]
    [problem] = done.problems
    assert (problem["code"], problem["message"]) == ("No", "1 no")
    assert problem["target"].endswith("/flexNodeConfig/a")
    assert sorted(each["properties"]["statusCode"] for each in operations) == ["BadRequest", "Created"]


def test_resource_can_reference_state_of_another_by_name() -> None:
    cloud = Cloud()
    uses = node("b", dependsOn=["plant/a"], properties={"of": "[reference('plant/a').x]"})
    run(cloud, node("a", properties={"x": 7}), uses)
    assert cloud.kept["b"]["properties"] == {"of": 7}


def test_outputs_are_evaluated_last_and_skipped_after_failure() -> None:
    output = {"type": "securestring", "value": "[listConfigUrl('plant/a', '1').configUrl]"}
    cloud = Cloud()
    assert run(cloud, node("a"), url=output)[2] == {"url": ("SecureString", "canary")}
    assert cloud.asked == [("PUT", "a"), ("POST", "listConfigUrl")]
    failing = Cloud(refused=frozenset({"a"}))
    assert run(failing, node("a"), url=output)[2] == {}
    assert failing.asked == [("PUT", "a")]


def test_refused_or_mistyped_output_fails_deployment() -> None:
    output = {"type": "securestring", "value": "[listConfigUrl('plant/a', '1').configUrl]"}
    refused, operations, found = run(Cloud(refused=frozenset({"listConfigUrl"})), node("a"), url=output)
    assert found == {}
    assert refused.problems[0]["code"] == "DeploymentOutputEvaluationFailed"
    assert operations[-1]["properties"]["provisioningOperation"] == "EvaluateDeploymentOutput"
    odd, _, _ = run(Cloud(), node("a"), url={**output, "type": "secureObject"})
    assert "canary" not in json.dumps(odd.problems)
    assert "not of type 'SecureObject'" in json.dumps(odd.problems)


def test_what_if_masks_secrets_and_compares_writable_properties() -> None:
    definitions = {"secret": {"type": "securestring"}, "pods": {"type": "int"}}
    auth = {
        "method": "servicePrincipal",
        "servicePrincipal": {"clientId": "x", "clientSecret": "[parameters('secret')]"},
    }
    properties = {"azureAuth": auth, "nodeConfig": {"maxPods": "[parameters('pods')]", "kubelet": None}}
    template = {"parameters": definitions, "resources": [node("a", properties=properties)]}
    cloud = Cloud()

    def foreseen(pods: int) -> dict[str, Any]:
        planned = plan_deployment(template, {"secret": {"value": "canary"}, "pods": {"value": pods}}, PLACE)
        [change] = asyncio.run(what_if_changes(planned, cloud))
        assert "canary" not in json.dumps(change)
        return change

    made = foreseen(110)
    assert made["changeType"] == "Create"
    assert made["after"]["properties"]["azureAuth"]["servicePrincipal"]["clientSecret"] == "*******"
    assert "kubelet" not in made["after"]["properties"]["nodeConfig"]
    said = {"method": "servicePrincipal", "servicePrincipal": {"clientId": "x"}}
    cloud.kept["a"] = {"properties": {"azureAuth": said, "configVersion": "7", "status": {"joinState": "Joined"}}}
    assert foreseen(110)["changeType"] == "NoChange"
    [difference] = foreseen(50)["delta"]
    assert (difference["path"], difference["after"]) == ("properties.nodeConfig", {"maxPods": 50})


def test_running_deployment_is_canceled_after_restart(tmp_path: Path) -> None:
    for name, state in (("a", "Running"), ("b", "Succeeded")):
        DeploymentHistory(tmp_path).begin({"id": f"/x/{name}", "properties": {"provisioningState": state}})
    found = {each["id"]: each["properties"]["provisioningState"] for each in DeploymentHistory(tmp_path).all()}
    assert found == {"/x/a": "Canceled", "/x/b": "Succeeded"}
