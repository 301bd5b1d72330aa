"""Turns a template and its parameters into the resources that it describes.

What the shipped templates do not use is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.deployments.expressions import (
    DEFERRED,
    CallAction,
    DeploymentTarget,
    EvaluationScope,
    TemplateError,
    evaluate,
)
from aks_flex_lab.arm.provider_proxy import PROVIDER_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# By ARM's case-insensitive names: the Python type, and ARM's spelling.
PARAMETER_TYPES: dict[str, tuple[type, str]] = {
    "string": (str, "String"),
    "securestring": (str, "SecureString"),
    "int": (int, "Int"),
    "bool": (bool, "Bool"),
    "object": (dict, "Object"),
    "secureobject": (dict, "SecureObject"),
    "array": (list, "Array"),
}
SECURE_TYPES = frozenset({"SecureString", "SecureObject"})
TEMPLATE_KEYS = frozenset({"$schema", "contentVersion", "metadata", "parameters", "resources", "outputs"})
PROVIDER_KEYS = frozenset({"properties", "location", "tags"})  # what is sent to the provider
ARM_KEYS = frozenset({"type", "apiVersion", "name", "dependsOn", "copy", "comments", "metadata"})


@dataclass(frozen=True)
class DeploymentParameters:
    values: Mapping[str, Any]
    types: Mapping[str, str]  # with ARM's spelling

    def shown(self) -> dict[str, Any]:
        """Returns the parameters without secure values, for callers that can read deployments."""
        return {name: public_value(self.types[name], value) for name, value in self.values.items()}


def public_value(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind} if kind in SECURE_TYPES else {"type": kind, "value": value}


@dataclass(frozen=True)
class PlannedResource:
    """One resource of the template."""

    id: str
    kind: str
    version: str
    depends: frozenset[str]  # IDs in lower case
    body: dict[str, Any]


@dataclass(frozen=True)
class DeploymentPlan:
    target: DeploymentTarget
    parameters: DeploymentParameters
    resources: tuple[PlannedResource, ...]  # each after those that it depends on
    documents: Mapping[str, Any]  # outputs by name

    def outputs(self, call_action: CallAction) -> dict[str, tuple[str, Any]]:
        """Returns the type and value of each output by name."""
        scope = EvaluationScope(self.target, self.parameters.values, call_action=call_action)
        found = {}
        for name, output in self.documents.items():
            kind = parameter_type(output, f"output '{name}'")
            if "copy" in output:
                indices = range(evaluate(output["copy"]["count"], scope))
                value: Any = [evaluate(output["copy"]["input"], replace(scope, index=index)) for index in indices]
            else:
                value = evaluate(output.get("value"), scope)
            if value is not DEFERRED and not has_type(value, kind):
                message = f"The output '{name}' is not of type '{kind}'."
                raise TemplateError(message, "DeploymentOutputEvaluationFailed")
            found[name] = (kind, value)
        return found


def plan_deployment(template: Any, values: Mapping[str, Any], target: DeploymentTarget) -> DeploymentPlan:
    """Validates a template and returns its resources; raises TemplateError when it is invalid."""
    if not isinstance(template, dict) or not isinstance(template.get("resources"), list):
        raise TemplateError("A template must be an object with an array of resources.")
    _require_supported(template, TEMPLATE_KEYS, "The template")
    parameters = read_parameters(template.get("parameters") or {}, values, target)
    scope = EvaluationScope(target, parameters.values)
    found = [each for document in template["resources"] for each in _plan_resources(document, scope)]
    plan = DeploymentPlan(target, parameters, tuple(_in_order(found)), template.get("outputs") or {})
    plan.outputs(lambda *_: DEFERRED)  # reports errors before any resource is written
    return plan


def _require_supported(document: Mapping[str, Any], supported: frozenset[str], what: str) -> None:
    if unknown := sorted({*document} - supported):
        raise TemplateError(f"{what} has '{', '.join(unknown)}', which the lab does not support.")


def _plan_resources(document: Mapping[str, Any], scope: EvaluationScope) -> Iterator[PlannedResource]:
    _require_supported(document, PROVIDER_KEYS | ARM_KEYS, "A resource")
    scopes = [scope]
    if "copy" in document:
        loop = document["copy"]
        _require_supported(loop, frozenset({"name", "count"}), "A copy loop")
        scopes = [replace(scope, index=index) for index in range(evaluate(loop["count"], scope))]
    for each in scopes:
        kind, name, version = (evaluate(document.get(key), each) for key in ("type", "name", "apiVersion"))
        if not all(isinstance(text, str) and text for text in (kind, name, version)):
            raise TemplateError("A resource has no 'type', 'name' or 'apiVersion'.")
        id_ = each.target.resource_id(kind, *name.split("/"))
        if not PROVIDER_PATHS.fullmatch(id_):
            raise TemplateError(f"The resource type '{kind}' is not supported by the lab.", "InvalidResourceType")
        depends = frozenset(str(other).lower() for other in evaluate(document.get("dependsOn") or [], each))
        body = evaluate({key: value for key, value in document.items() if key in PROVIDER_KEYS}, each)
        yield PlannedResource(id_, kind, version, depends, body)


def _in_order(resources: list[PlannedResource]) -> Iterator[PlannedResource]:
    """Yields resources after those that they depend on."""
    by_id = {each.id.lower(): each for each in resources}
    if len(by_id) < len(resources):
        raise TemplateError("A resource is defined multiple times in the template.")
    if unknown := next((id_ for each in resources for id_ in each.depends if id_ not in by_id), None):
        raise TemplateError(f"A resource depends on '{unknown}', which is the ID of no resource in the template.")
    try:
        order = [*TopologicalSorter({id_: each.depends for id_, each in by_id.items()}).static_order()]
    except CycleError as error:
        raise TemplateError(f"Circular dependency detected on resource '{error.args[1][0]}'.") from None
    return (by_id[id_] for id_ in order)


def read_parameters(
    definitions: Mapping[str, Any], passed: Mapping[str, Any], target: DeploymentTarget
) -> DeploymentParameters:
    names = {name.lower(): name for name in definitions}
    if unknown := [name for name in passed if name.lower() not in names]:
        raise TemplateError(
            f"The following parameters were supplied, but are not defined in the template: '{', '.join(unknown)}'. "
            f"The template defines: '{', '.join(definitions)}'."
        )
    known = {names[name.lower()]: value for name, value in passed.items()}
    values: dict[str, Any] = {}
    for name, definition in definitions.items():
        values[name] = _value(name, definition, known, EvaluationScope(target, values))
    return DeploymentParameters(
        values, {name: parameter_type(each, f"parameter '{name}'") for name, each in definitions.items()}
    )


def parameter_type(definition: Mapping[str, Any], what: str) -> str:
    kind = str(definition.get("type", "")).lower()
    if kind not in PARAMETER_TYPES:
        raise TemplateError(
            f"The {what} has the type '{definition.get('type')}', which is not one of {', '.join(PARAMETER_TYPES)}."
        )
    return PARAMETER_TYPES[kind][1]


def _value(name: str, definition: Mapping[str, Any], known: Mapping[str, Any], before: EvaluationScope) -> Any:
    """Returns the value of a parameter. A default can use earlier parameters."""
    kind = parameter_type(definition, f"parameter '{name}'")
    if name in known:
        if not isinstance(known[name], dict) or "value" not in known[name]:
            raise TemplateError(
                f"The template parameter '{name}' has no value. The lab does not support references to a key vault."
            )
        value = known[name]["value"]
    elif "defaultValue" in definition:
        value = evaluate(definition["defaultValue"], before)
    else:
        raise TemplateError(f"The value for the template parameter '{name}' is not provided.")
    if not has_type(value, kind):
        raise TemplateError(f"The template parameter '{name}' must be of type '{kind}', and the value is not.")
    _check(name, definition, kind, value)
    return value


def has_type(value: Any, kind: str) -> bool:
    types = PARAMETER_TYPES[kind.lower()][0]
    return isinstance(value, types) and not (types is int and isinstance(value, bool))


def _check(name: str, definition: Mapping[str, Any], kind: str, value: Any) -> None:
    allowed = definition.get("allowedValues")
    if allowed is not None and value not in allowed:
        repeated = (
            "" if kind in SECURE_TYPES else f" The value '{value}' is not part of the allowed value(s): '{allowed}'."
        )
        raise TemplateError(f"The provided value for the template parameter '{name}' is not valid.{repeated}")
    if kind == "Bool":
        return
    size = value if kind == "Int" else len(value)
    for limit in ("minValue", "minLength", "maxValue", "maxLength"):
        bound = definition.get(limit, size)
        if size < bound if limit.startswith("min") else size > bound:
            raise TemplateError(f"The value of the template parameter '{name}' is not valid: its {limit} is {bound}.")
