"""Turns a template into the resources it describes, in dependency order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.deployments.evaluation import (
    DeferredRuntime,
    DeploymentTarget,
    EvaluationScope,
    checked_count,
    evaluate,
)
from aks_flex_lab.arm.deployments.parameters import DeploymentParameters, parameter_type, read_parameters
from aks_flex_lab.arm.deployments.template_errors import TemplateError
from aks_flex_lab.arm.provider_proxy import PROVIDER_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_lab.arm.deployments.evaluation import TemplateRuntime

TEMPLATE_KEYS = frozenset(
    {"$schema", "contentVersion", "metadata", "parameters", "variables", "functions", "resources", "outputs"}
)
# Properties of a resource that are sent to its provider, and those that ARM handles.
PROVIDER_KEYS = frozenset({"properties", "location", "tags", "sku", "kind", "identity", "zones"})
ARM_KEYS = frozenset({"type", "apiVersion", "name", "dependsOn", "copy", "condition", "comments", "metadata"})

Template = dict[str, Any]


@dataclass(frozen=True)
class PlannedResource:
    """One resource of the template."""

    id: str
    kind: str
    name: str
    version: str
    loop: str  # name of its copy loop
    depends: tuple[str, ...]  # IDs, after the whole template is read
    document: Mapping[str, Any]  # its expressions are evaluated when it is deployed
    scope: EvaluationScope

    def body(self, runtime: TemplateRuntime) -> dict[str, Any]:
        """Returns the document for its provider."""
        document = {key: value for key, value in self.document.items() if key in PROVIDER_KEYS}
        body: dict[str, Any] = evaluate(document, replace(self.scope, runtime=runtime))
        return body


@dataclass(frozen=True)
class DeploymentPlan:
    target: DeploymentTarget
    parameters: DeploymentParameters
    resources: tuple[PlannedResource, ...]
    outputs: Mapping[str, Any]
    scope: EvaluationScope

    def find(self, resource: str) -> str:
        """Returns the ID of a resource of the template by its ID or name."""
        own = [each.id for each in self.resources if resource.lower() in {each.id.lower(), each.name.lower()}]
        return own[0] if own else resource


def plan_deployment(template: Any, values: Mapping[str, Any], target: DeploymentTarget) -> DeploymentPlan:
    """Validates a template and returns its resources; raises TemplateError when it is invalid."""
    _check_shape(template)
    parameters = read_parameters(template.get("parameters") or {}, values, target)
    scope = EvaluationScope(target, parameters.values, template.get("variables") or {})
    found = tuple(each for document in template["resources"] for each in _plan_resources(document, scope))
    made = DeploymentPlan(target, parameters, _resolve_dependencies(found), template.get("outputs") or {}, scope)
    _check_order(made.resources)
    for each in made.resources:  # report errors before any resource is written
        each.body(DeferredRuntime())
    evaluate_outputs(made, DeferredRuntime())
    return made


def evaluate_outputs(plan: DeploymentPlan, runtime: TemplateRuntime) -> dict[str, tuple[str, Any]]:
    """Returns the type and value of each output by name."""
    scope = replace(plan.scope, runtime=runtime)
    found = {}
    for name, output in plan.outputs.items():
        if evaluate(output.get("condition", True), plan.scope):
            found[name] = (parameter_type(output, f"output '{name}'"), _output(name, output, scope))
    return found


def _output(name: str, output: Mapping[str, Any], scope: EvaluationScope) -> Any:
    if "copy" not in output:
        return evaluate(output.get("value"), scope)
    count = checked_count(evaluate(output["copy"]["count"], scope), name)
    return [evaluate(output["copy"]["input"], scope.at(name, index, own=True)) for index in range(count)]


def _check_shape(template: Any) -> None:
    if not isinstance(template, dict) or not isinstance(template.get("resources"), list):
        raise TemplateError("A template must be an object with an array of resources.")
    if unknown := sorted({*template} - TEMPLATE_KEYS):
        raise TemplateError(f"The template has '{', '.join(unknown)}', which the lab does not support.")
    if template.get("functions"):
        raise TemplateError("The template has user-defined functions, which the lab does not support.")


def _plan_resources(document: Mapping[str, Any], scope: EvaluationScope) -> Iterator[PlannedResource]:
    if unknown := sorted({*document} - PROVIDER_KEYS - ARM_KEYS):
        raise TemplateError(f"A resource has '{', '.join(unknown)}', which the lab does not support.")
    loop = document.get("copy")
    if loop is None:
        yield from _plan_resource(document, scope, "")
        return
    name = str(loop["name"])
    if str(loop.get("mode", "parallel")).lower() != "parallel":
        raise TemplateError(f"The copy loop '{name}' is serial, which the lab does not support.")
    for index in range(checked_count(evaluate(loop["count"], scope), name)):
        yield from _plan_resource(document, scope.at(name, index, own=True), name)


def _plan_resource(document: Mapping[str, Any], scope: EvaluationScope, loop: str) -> Iterator[PlannedResource]:
    kind, name, version = (_required_text(document, key, scope) for key in ("type", "name", "apiVersion"))
    id_ = scope.target.resource_id(kind, name.split("/"))
    if not PROVIDER_PATHS.fullmatch(id_):
        raise TemplateError(f"The resource type '{kind}' is not supported by the lab.", "InvalidResourceType")
    condition = evaluate(document.get("condition", True), scope)
    if not isinstance(condition, bool):
        raise TemplateError(f"The condition of '{name}' is not a Boolean value.")
    if condition:
        depends = tuple(str(each) for each in evaluate(document.get("dependsOn") or [], scope))
        yield PlannedResource(id_, kind, name, version, loop, depends, document, scope)


def _required_text(document: Mapping[str, Any], key: str, scope: EvaluationScope) -> str:
    found = evaluate(document.get(key), scope)
    if not isinstance(found, str) or not found:
        raise TemplateError(f"A resource has no '{key}'.")
    return found


def _resolve_dependencies(resources: tuple[PlannedResource, ...]) -> tuple[PlannedResource, ...]:
    """Resolves dependencies to IDs, without resources that a condition excludes."""
    ids = [each.id.lower() for each in resources]
    if twice := next((each.id for each in resources if ids.count(each.id.lower()) > 1), None):
        raise TemplateError(f"The resource '{twice}' is defined multiple times in the template.")
    return tuple(replace(each, depends=_targets(each, resources)) for each in resources)


def _targets(resource: PlannedResource, others: tuple[PlannedResource, ...]) -> tuple[str, ...]:
    names = {each.lower() for each in resource.depends}
    return tuple(each.id for each in others if names & {each.id.lower(), each.name.lower(), each.loop.lower()})


def _check_order(resources: tuple[PlannedResource, ...]) -> None:
    left = {each.id: {*each.depends} for each in resources}
    while ready := [id_ for id_, depends in left.items() if not depends & left.keys()]:
        for each in ready:
            del left[each]
    if left:
        raise TemplateError(f"Circular dependency detected on resource '{next(iter(left))}'.")
