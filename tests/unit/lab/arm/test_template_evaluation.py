"""Tests of template evaluation: from a template and its parameters to resources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.deployments.expressions import DeploymentTarget, TemplateError
from aks_flex_lab.arm.deployments.service import deployment_properties
from aks_flex_lab.arm.deployments.templates import DeploymentPlan, plan_deployment

PLACE = DeploymentTarget("sub-1", "edge", "first")
KIND = "Microsoft.ContainerService/managedClusters/flexNodeConfig"


def node(own: str, **more: Any) -> dict[str, Any]:
    return {"type": KIND, "apiVersion": "1", "name": f"plant/{own}", "properties": {}, **more}


def planned(template: dict[str, Any], **given: Any) -> DeploymentPlan:
    return plan_deployment(
        {"resources": [], **template}, {name: {"value": value} for name, value in given.items()}, PLACE
    )


def names(found: DeploymentPlan) -> list[str]:
    return [each.id.rpartition("/")[2] for each in found.resources]


def test_resource_copy_loop_creates_requested_count() -> None:
    looped = node("", name="[format('plant/edge-{0}', copyIndex())]", copy={"name": "all", "count": 3})
    assert names(planned({"resources": [looped]})) == ["edge-0", "edge-1", "edge-2"]


def test_resources_are_in_the_order_of_their_dependencies() -> None:
    def after(name: str) -> list[str]:
        return [f"[resourceId('{KIND}', 'plant', '{name}')]"]

    found = planned({"resources": [node("c", dependsOn=after("b")), node("b", dependsOn=after("A")), node("a")]})
    assert names(found) == ["a", "b", "c"]


B = f"[resourceId('{KIND}', 'plant', 'b')]"
WRONG_RESOURCES: list[tuple[list[Any], str]] = [
    ([node("b", dependsOn=[B])], "Circular dependency"),
    ([node("a", dependsOn=[B])], "the ID of no resource"),
    ([node("a"), node("A")], "defined multiple times"),
    ([node("a", name="plant")], "incorrect segment lengths"),
    ([node("a", type="Microsoft.Web/sites", name="x")], "'Microsoft.Web/sites' is not supported by the lab"),
    ([node("a", condition=True)], "'condition', which the lab does not support"),
    ([node("a", copy={"name": "x", "count": 1, "mode": "serial"})], "'mode', which the lab does not support"),
    ([node("a", properties={"copy": []})], "A property has a copy loop"),
    ([node("a", properties={"x": "[oops()]"})], "'[oops()]': the function 'oops'"),
]
WRONG_TEMPLATES: list[tuple[dict[str, Any], str]] = [
    ({"resources": {}}, "an array of resources"),
    ({"variables": {}}, "'variables', which the lab does not support"),
    ({"outputs": {"a": {"type": "string", "value": "[oops()]"}}}, "oops"),
    ({"outputs": {"a": {"type": "secureObject", "value": "x"}}}, "not of type 'SecureObject'"),
    ({"outputs": {"a": {"type": "text", "value": ""}}}, "output 'a' has the type 'text'"),
    ({"parameters": {"a": {"type": "text"}}}, "parameter 'a' has the type 'text'"),
]
WRONG_PARAMETERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"type": "string"}, {}, "'a' is not provided"),
    ({"type": "string"}, {"a": "x", "b": 1}, "not defined in the template: 'b'"),
    ({"type": "int"}, {"a": True}, "must be of type 'Int'"),
    ({"type": "string", "allowedValues": ["x"]}, {"a": "y"}, "The value 'y' is not part of"),
    ({"type": "securestring", "allowedValues": ["x"]}, {"a": "canary"}, "'a' is not valid"),
    ({"type": "securestring", "minLength": 9}, {"a": "canary"}, "its minLength is 9"),
    ({"type": "int", "maxValue": 2}, {"a": 3}, "its maxValue is 2"),
]


@pytest.mark.parametrize(
    ("template", "given", "said"),
    [
        *(({"resources": resources}, {}, said) for resources, said in WRONG_RESOURCES),
        *((template, {}, said) for template, said in WRONG_TEMPLATES),
        *(({"parameters": {"a": definition}}, given, said) for definition, given, said in WRONG_PARAMETERS),
    ],
)
def test_wrong_template_is_refused_without_showing_secrets(
    template: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        planned(template, **given)
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)


def test_parameter_default_can_use_earlier_parameters() -> None:
    definitions = {
        "a": {"type": "string"},
        "b": {"type": "string", "defaultValue": "[concat(parameters('a'), '-b')]"},
    }
    found = planned({"parameters": definitions}, A="x")
    assert found.parameters.values == {"a": "x", "b": "x-b"}


def test_secure_parameters_are_used_but_not_shown() -> None:
    definitions = {"secret": {"type": "secureString"}, "all": {"type": "secureObject"}, "plain": {"type": "string"}}
    resources = [node("a", properties={"s": "[parameters('secret')]", "o": "[parameters('all').x]"})]
    found = planned(
        {"parameters": definitions, "resources": resources}, secret="canary", all={"x": "canary"}, plain="p"
    )
    assert found.resources[0].body["properties"] == {"s": "canary", "o": "canary"}
    assert "canary" not in json.dumps(found.parameters.shown())


def test_deployment_request_in_az_json_dialect_is_parsed() -> None:
    template = b'{"a": "http://x, template: y", "b": "one\n two"}'
    content = b'{"properties": {"mode": "incremental", template:' + template + b"}}"
    assert deployment_properties(content)["template"] == {"a": "http://x, template: y", "b": "one\n two"}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "InvalidRequestContent"),
        (b"[]", "InvalidRequestContent"),
        (b'{"properties": {"mode": "Complete", "template": {}}}', "InvalidTemplate"),
        (b'{"properties": {"mode": "Incremental", "templateLink": {"uri": "https://x"}}}', "InvalidTemplate"),
    ],
)
def test_malformed_deployment_requests_are_refused(content: bytes, code: str) -> None:
    with pytest.raises(LabArmError) as caught:
        deployment_properties(content)
    assert caught.value.code == code
