"""What a deployment would change, as far as that can be said before: nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.deployments.asking import Refused
from aks_flex_node.lab.arm.deployments.evaluating import Later, NotYet
from aks_flex_node.lab.arm.deployments.settable import settable

if TYPE_CHECKING:
    from aks_flex_node.lab.arm.deployments.asking import Asks
    from aks_flex_node.lab.arm.deployments.templates import Plan, Planned

UNKNOWN = "(known when it is deployed)"


async def changes(plan: Plan, inside: Asks) -> list[dict[str, Any]]:
    return [await _change(each, plan.parameters.masked(), inside) for each in plan.resources]


async def _change(resource: Planned, masked: dict[str, Any], inside: Asks) -> dict[str, Any]:
    """Calculated with masks in place of secure values, since everything here is shown."""
    body = _shown(replace(resource, scope=replace(resource.scope, parameters=masked)).body(NotYet()))
    named = {"id": resource.id, "name": resource.id.rpartition("/")[2], "type": resource.kind}
    before = await _existing(resource, inside)
    if before is None:
        after = {**named, "apiVersion": resource.version, **body}
        return {"resourceId": resource.id, "changeType": "Create", "after": after}
    old, new = settable(before.get("properties") or {}), settable(body.get("properties") or {})
    delta = differences(old, new, "properties")
    shown = {"before": {**named, "properties": old}, "after": {**named, "properties": new}}
    change = {"resourceId": resource.id, "changeType": "Modify" if delta else "NoChange", **shown}
    return {**change, "delta": delta} if delta else change


async def _existing(resource: Planned, inside: Asks) -> dict[str, Any] | None:
    try:
        return dict((await inside.ask("GET", resource.id, resource.version))[1])
    except Refused as refused:
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
    return UNKNOWN if isinstance(value, Later) else value
