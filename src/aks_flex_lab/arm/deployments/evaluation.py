"""Evaluates template expressions in the scope of a deployment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from aks_flex_lab.arm.deployments.expressions import (
    FUNCTIONS,
    CallExpression,
    LiteralExpression,
    TemplateExpression,
    is_expression,
    parse_expression,
)
from aks_flex_lab.arm.deployments.template_errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_COPIES = 800  # limit of a loop, as in Azure


class Deferred:
    """A placeholder for a value that is known only while the deployment runs."""


DEFERRED: Final = Deferred()


class TemplateRuntime(Protocol):
    """The interface by which template functions read existing resources."""

    def reference(self, resource: str, version: str, *, full: bool) -> Any: ...

    def act(self, action: str, resource: str, version: str, body: Any) -> Any: ...


@dataclass(frozen=True)
class DeferredRuntime:
    """Returns placeholders before the deployment, without requests."""

    def reference(self, *_: object, **__: object) -> Any:
        return DEFERRED

    def act(self, *_: object) -> Any:
        return DEFERRED


@dataclass(frozen=True)
class DeploymentTarget:
    """The scope and name of a deployment."""

    subscription: str
    tenant: str
    group: str
    location: str
    deployment: str

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"

    def resource_id(self, kind: str, names: list[str]) -> str:
        return resource_id_in(self.group_id, kind, names)


@dataclass(frozen=True)
class EvaluationScope:
    target: DeploymentTarget
    parameters: Mapping[str, Any]
    variables: Mapping[str, Any]
    runtime: TemplateRuntime | None = None  # None where expressions must not depend on existing resources
    loops: Mapping[str, int] = field(default_factory=dict)  # the loop of the resource is also stored as ""

    def at(self, loop: str, index: int, *, own: bool = False) -> EvaluationScope:
        return replace(self, loops={**self.loops, loop.lower(): index, **({"": index} if own else {})})


def evaluate(value: Any, scope: EvaluationScope) -> Any:
    if isinstance(value, str):
        return _evaluate_text(value, scope)
    if isinstance(value, list):
        return [evaluate(each, scope) for each in value]
    if isinstance(value, dict):
        plain = {key: evaluate(each, scope) for key, each in value.items() if key != "copy"}
        return {**plain, **evaluate_copies(value.get("copy"), scope)}
    return value


def evaluate_copies(loops: Any, scope: EvaluationScope) -> dict[str, Any]:
    """Evaluates copy loops, which describe an array by one element."""
    found: dict[str, Any] = {}
    for loop in loops or ():
        name, count = str(loop["name"]), evaluate(loop["count"], scope)
        found[name] = [evaluate(loop["input"], scope.at(name, index)) for index in range(checked_count(count, name))]
    return found


def checked_count(count: Any, loop: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COPIES:
        raise TemplateError(f"The copy count of '{loop}' must be a number from 0 to {MAX_COPIES}.")
    return count


def resource_id_in(scope: str, kind: str, names: list[str]) -> str:
    """Returns the ID of a resource from its type and the segments of its name."""
    namespace, *types = kind.split("/")
    if not types or len(types) != len(names) or not all(names):
        raise TemplateError(
            f"The type '{kind}' and the name '{'/'.join(names)}' have incorrect segment lengths: a name has one "
            "segment for each of the type after its namespace."
        )
    return f"{scope}/providers/{namespace}" + "".join(f"/{a}/{b}" for a, b in zip(types, names, strict=True))


def _evaluate_text(text: str, scope: EvaluationScope) -> Any:
    if not is_expression(text):
        return text[1:] if text.startswith("[[") else text
    tree = parse_expression(text)
    try:
        return _evaluate_tree(tree, scope)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        message = str(error) if type(error) is ValueError else "its arguments are invalid"
        raise TemplateError(f"Unable to evaluate the template language expression '{text}': {message}.") from None


def _evaluate_tree(tree: TemplateExpression, scope: EvaluationScope) -> Any:
    if isinstance(tree, LiteralExpression):
        return tree.value
    if isinstance(tree, CallExpression):
        return _evaluate_call(tree, scope)
    of, key = _evaluate_tree(tree.of, scope), _evaluate_tree(tree.key, scope)
    return DEFERRED if of is DEFERRED or key is DEFERRED else _member(of, key)


def _member(of: Any, key: Any) -> Any:
    """Returns a member of a value; property names are case-insensitive."""
    if isinstance(of, dict):
        for name, value in of.items():
            if name.lower() == key.lower():
                return value
        raise ValueError("the property does not exist")
    if not isinstance(of, list) or not isinstance(key, int) or not 0 <= key < len(of):
        raise ValueError("the element does not exist")
    return of[key]


def _evaluate_call(call: CallExpression, scope: EvaluationScope) -> Any:
    name = call.name.lower()
    if name == "if":
        return _evaluate_if(call, scope)
    arguments = [_evaluate_tree(each, scope) for each in call.arguments]
    if any(each is DEFERRED for each in arguments):
        return DEFERRED
    if name in SCOPE_FUNCTIONS:
        return SCOPE_FUNCTIONS[name](scope, *arguments)
    if name == "reference" or (name.startswith("list") and name != "list"):
        return _evaluate_runtime_call(call.name, scope, arguments)
    if name not in FUNCTIONS:
        raise ValueError(f"the function '{call.name}' is unknown, or not supported by the lab")
    return FUNCTIONS[name](*arguments)


def _evaluate_if(call: CallExpression, scope: EvaluationScope) -> Any:
    """Evaluates only the selected branch, because the other may refer to what does not exist."""
    condition, yes, no = call.arguments
    found = _evaluate_tree(condition, scope)
    if found is DEFERRED:
        return DEFERRED
    if not isinstance(found, bool):
        raise ValueError("the condition is not a Boolean value")
    return _evaluate_tree(yes if found else no, scope)


def _evaluate_runtime_call(name: str, scope: EvaluationScope, arguments: list[Any]) -> Any:
    if scope.runtime is None:
        raise ValueError(
            f"the function '{name}' is not expected at this location, which is known before resources are"
        )
    if name.lower() != "reference":
        resource, version, *body = arguments
        return scope.runtime.act(name, resource, version, body[0] if body else None)
    resource, *rest = arguments
    full = len(rest) > 1 and str(rest[1]).lower() == "full"
    return scope.runtime.reference(resource, rest[0] if rest else "", full=full)


def _parameter(scope: EvaluationScope, name: str) -> Any:
    for known, value in scope.parameters.items():
        if known.lower() == name.lower():
            return value
    raise ValueError(f"the template parameter '{name}' is not found")


def _variable(scope: EvaluationScope, name: str) -> Any:
    for known, value in scope.variables.items():
        if known.lower() == name.lower() and known != "copy":
            return evaluate(value, scope)
    for loop in scope.variables.get("copy", ()):
        if str(loop["name"]).lower() == name.lower():
            return evaluate_copies([loop], scope)[loop["name"]]
    raise ValueError(f"the template variable '{name}' is not found")


def _copy_index(scope: EvaluationScope, *arguments: Any) -> int:
    """Evaluates `copyIndex()`, `copyIndex(1)`, `copyIndex('loop')` and `copyIndex('loop', 1)`."""
    names = [each for each in arguments if isinstance(each, str)]
    offsets = [each for each in arguments if isinstance(each, int)]
    loop = names[0].lower() if names else ""
    if loop not in scope.loops:
        raise ValueError("the function 'copyIndex' is used outside of that copy loop")
    return scope.loops[loop] + sum(offsets)


def _resource_id(scope: EvaluationScope, *arguments: str) -> str:
    """Evaluates `resourceId([subscription], [group], type, name…)`."""
    kind = next((at for at, each in enumerate(arguments) if "/" in each), None)
    if kind is None or kind > 2:
        raise ValueError("the resource type is missing")
    before, target = arguments[:kind], scope.target
    group = before[-1] if before else target.group
    subscription = before[0] if len(before) == 2 else target.subscription
    names = [part for each in arguments[kind + 1 :] for part in each.split("/")]
    return resource_id_in(f"/subscriptions/{subscription}/resourceGroups/{group}", arguments[kind], names)


def _group(scope: EvaluationScope) -> dict[str, Any]:
    target = scope.target
    return {"id": target.group_id, "name": target.group, "location": target.location, "tags": {}}


def _subscription(scope: EvaluationScope) -> dict[str, Any]:
    target = scope.target
    path = f"/subscriptions/{target.subscription}"
    return {
        "id": path,
        "subscriptionId": target.subscription,
        "tenantId": target.tenant,
        "displayName": "aks-flex-lab",
    }


SCOPE_FUNCTIONS: Final[dict[str, Any]] = {
    "copyindex": _copy_index,
    "deployment": lambda scope: {"name": scope.target.deployment},
    "parameters": _parameter,
    "resourcegroup": _group,
    "resourceid": _resource_id,
    "subscription": _subscription,
    "variables": _variable,
}
