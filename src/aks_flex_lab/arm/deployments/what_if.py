"""What-if: the changes a deployment would make, compared on the properties a caller can set."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.deployments.evaluation import Deferred, DeferredRuntime
from aks_flex_lab.arm.deployments.execution import ProviderRefusal

if TYPE_CHECKING:
    from aks_flex_lab.arm.deployments.execution import ResourceClient
    from aks_flex_lab.arm.deployments.templates import DeploymentPlan, PlannedResource


NODE_DEFINITION, POOL_DEFINITION = "FlexNodeConfigProperties", "FlexNodePoolProperties"


def settable_properties(properties: Any, kind: str) -> Any:
    """Returns the properties of a node or a pool that a caller can set, normalized for comparison."""
    name = POOL_DEFINITION if kind.lower().endswith("/flexnodepools") else NODE_DEFINITION
    return _pruned(properties, {"$ref": f"#/definitions/{name}"})


def _pruned(value: Any, schema: dict[str, Any]) -> Any:
    known = _definition(schema).get("properties")
    if not isinstance(value, dict) or known is None:
        return value
    result = {}
    for key, each in value.items():
        other = known.get(key, {})
        if each is None or other.get("readOnly") or other.get("x-ms-secret") or each == other.get("default"):
            continue
        pruned = _pruned(each, other)
        if pruned not in ({}, []):
            result[key] = pruned
    return result


def _definition(schema: dict[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return _contract()["definitions"].get(name, {}) if name else schema


@cache
def _contract() -> dict[str, Any]:
    text = files("aks_flex_rp.api").joinpath("openapi.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


UNKNOWN = "(known after deployment)"


async def what_if_changes(plan: DeploymentPlan, inside: ResourceClient) -> list[dict[str, Any]]:
    return [await _change(each, plan.parameters.masked(), inside) for each in plan.resources]


async def _change(resource: PlannedResource, masked: dict[str, Any], inside: ResourceClient) -> dict[str, Any]:
    """Returns the change of a resource, with masked secure values, because the result is shown."""
    body = _shown(replace(resource, scope=replace(resource.scope, parameters=masked)).body(DeferredRuntime()))
    named = {"id": resource.id, "name": resource.id.rpartition("/")[2], "type": resource.kind}
    before = await _existing(resource, inside)
    if before is None:
        after = {**named, "apiVersion": resource.version, **body}
        return {"resourceId": resource.id, "changeType": "Create", "after": after}
    old, new = (settable_properties(each.get("properties") or {}, resource.kind) for each in (before, body))
    delta = differences(old, new, "properties")
    shown = {"before": {**named, "properties": old}, "after": {**named, "properties": new}}
    change = {"resourceId": resource.id, "changeType": "Modify" if delta else "NoChange", **shown}
    return {**change, "delta": delta} if delta else change


async def _existing(resource: PlannedResource, inside: ResourceClient) -> dict[str, Any] | None:
    try:
        return dict((await inside.request("GET", resource.id, resource.version))[1])
    except ProviderRefusal as refused:
        if refused.status == 404:
            return None
        raise


def differences(old: Any, new: Any, path: str) -> list[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [one for key in keys for one in differences(old.get(key), new.get(key), f"{path}.{key}")]
    if old == new:
        return []
    kind = "Create" if old is None else "Delete" if new is None else "Modify"
    return [{"path": path, "propertyChangeType": kind, "before": old, "after": new}]


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return UNKNOWN if isinstance(value, Deferred) else value
