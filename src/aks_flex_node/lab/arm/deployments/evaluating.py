"""What the expressions of a template come to, where it is deployed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from aks_flex_node.lab.arm.deployments.expressions import Call, Expression, Literal, is_expression, parse
from aks_flex_node.lab.arm.deployments.functions import FUNCTIONS
from aks_flex_node.lab.arm.deployments.problems import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_COPIES = 800  # of one loop, as in Azure


class Later:
    """Stands for what is known only while the deployment runs."""


LATER: Final = Later()


class Runtime(Protocol):
    """What a template asks of resources that exist."""

    def reference(self, resource: str, version: str, *, full: bool) -> Any: ...

    def act(self, action: str, resource: str, version: str, body: Any) -> Any: ...


@dataclass(frozen=True)
class NotYet:
    """Before the deployment: nothing is asked, and nothing is known."""

    def reference(self, *_: object, **__: object) -> Any:
        return LATER

    def act(self, *_: object) -> Any:
        return LATER


@dataclass(frozen=True)
class Place:
    """Where a template is deployed, and as what."""

    subscription: str
    tenant: str
    group: str
    location: str
    deployment: str

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"

    def resource_id(self, kind: str, names: list[str]) -> str:
        return in_group(self.group_id, kind, names)


@dataclass(frozen=True)
class Scope:
    place: Place
    parameters: Mapping[str, Any]
    variables: Mapping[str, Any]
    runtime: Runtime | None = None  # None where a template may not depend on what exists
    loops: Mapping[str, int] = field(default_factory=dict)  # the resource's own is also there as ""

    def at(self, loop: str, index: int, *, own: bool = False) -> Scope:
        return replace(self, loops={**self.loops, loop.lower(): index, **({"": index} if own else {})})


def evaluate(value: Any, scope: Scope) -> Any:
    if isinstance(value, str):
        return _text(value, scope)
    if isinstance(value, list):
        return [evaluate(each, scope) for each in value]
    if isinstance(value, dict):
        plain = {key: evaluate(each, scope) for key, each in value.items() if key != "copy"}
        return {**plain, **copies(value.get("copy"), scope)}
    return value


def copies(loops: Any, scope: Scope) -> dict[str, Any]:
    """Arrays that a template describes by one of their elements."""
    found: dict[str, Any] = {}
    for loop in loops or ():
        name, count = str(loop["name"]), evaluate(loop["count"], scope)
        found[name] = [evaluate(loop["input"], scope.at(name, index)) for index in range(checked_count(count, name))]
    return found


def checked_count(count: Any, loop: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_COPIES:
        raise TemplateError(f"The copy count of '{loop}' must be a number from 0 to {MOST_COPIES}.")
    return count


def in_group(scope: str, kind: str, names: list[str]) -> str:
    """The id of a resource by its type and the names on the way to it."""
    namespace, *types = kind.split("/")
    if not types or len(types) != len(names) or not all(names):
        raise TemplateError(
            f"The type '{kind}' and the name '{'/'.join(names)}' have incorrect segment lengths: a name has one "
            "segment for each of the type after its namespace."
        )
    return f"{scope}/providers/{namespace}" + "".join(f"/{a}/{b}" for a, b in zip(types, names, strict=True))


def _text(text: str, scope: Scope) -> Any:
    if not is_expression(text):
        return text[1:] if text.startswith("[[") else text
    tree = parse(text)
    try:
        return _value(tree, scope)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        said = str(error) if type(error) is ValueError else "its arguments do not fit"
        raise TemplateError(f"Unable to evaluate the template language expression '{text}': {said}.") from None


def _value(tree: Expression, scope: Scope) -> Any:
    if isinstance(tree, Literal):
        return tree.value
    if isinstance(tree, Call):
        return _called(tree, scope)
    of, key = _value(tree.of, scope), _value(tree.key, scope)
    return LATER if of is LATER or key is LATER else _member(of, key)


def _member(of: Any, key: Any) -> Any:
    """Names of properties match without regard to case."""
    if isinstance(of, dict):
        for name, value in of.items():
            if name.lower() == key.lower():
                return value
        raise ValueError("there is no such property")
    if not isinstance(of, list) or not isinstance(key, int) or not 0 <= key < len(of):
        raise ValueError("there is no such element")
    return of[key]


def _called(call: Call, scope: Scope) -> Any:
    name = call.name.lower()
    if name == "if":
        return _chosen(call, scope)
    arguments = [_value(each, scope) for each in call.arguments]
    if any(each is LATER for each in arguments):
        return LATER
    if name in SCOPED:
        return SCOPED[name](scope, *arguments)
    if name == "reference" or (name.startswith("list") and name != "list"):
        return _asked(call.name, scope, arguments)
    if name not in FUNCTIONS:
        raise ValueError(f"the function '{call.name}' is unknown, or not one that the lab has")
    return FUNCTIONS[name](*arguments)


def _chosen(call: Call, scope: Scope) -> Any:
    """Only the one that counts is evaluated: the other may call what does not exist."""
    condition, yes, no = call.arguments
    found = _value(condition, scope)
    if found is LATER:
        return LATER
    if not isinstance(found, bool):
        raise ValueError("the condition is not true or false")
    return _value(yes if found else no, scope)


def _asked(name: str, scope: Scope, arguments: list[Any]) -> Any:
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


def _parameter(scope: Scope, name: str) -> Any:
    for known, value in scope.parameters.items():
        if known.lower() == name.lower():
            return value
    raise ValueError(f"the template parameter '{name}' is not found")


def _variable(scope: Scope, name: str) -> Any:
    for known, value in scope.variables.items():
        if known.lower() == name.lower() and known != "copy":
            return evaluate(value, scope)
    for loop in scope.variables.get("copy", ()):
        if str(loop["name"]).lower() == name.lower():
            return copies([loop], scope)[loop["name"]]
    raise ValueError(f"the template variable '{name}' is not found")


def _copy_index(scope: Scope, *words: Any) -> int:
    """`copyIndex()`, `copyIndex(1)`, `copyIndex('loop')`, `copyIndex('loop', 1)`."""
    names = [each for each in words if isinstance(each, str)]
    offsets = [each for each in words if isinstance(each, int)]
    loop = names[0].lower() if names else ""
    if loop not in scope.loops:
        raise ValueError("the function 'copyIndex' is used outside of that copy loop")
    return scope.loops[loop] + sum(offsets)


def _resource_id(scope: Scope, *words: str) -> str:
    """`resourceId([subscription], [group], type, name…)`."""
    kind = next((at for at, each in enumerate(words) if "/" in each), None)
    if kind is None or kind > 2:
        raise ValueError("a type of resources is missing")
    before, place = words[:kind], scope.place
    group = before[-1] if before else place.group
    subscription = before[0] if len(before) == 2 else place.subscription
    names = [part for each in words[kind + 1 :] for part in each.split("/")]
    return in_group(f"/subscriptions/{subscription}/resourceGroups/{group}", words[kind], names)


def _group(scope: Scope) -> dict[str, Any]:
    place = scope.place
    return {"id": place.group_id, "name": place.group, "location": place.location, "tags": {}}


def _subscription(scope: Scope) -> dict[str, Any]:
    place = scope.place
    path = f"/subscriptions/{place.subscription}"
    return {"id": path, "subscriptionId": place.subscription, "tenantId": place.tenant, "displayName": "aks-flex-lab"}


SCOPED: Final[dict[str, Any]] = {
    "copyindex": _copy_index,
    "deployment": lambda scope: {"name": scope.place.deployment},
    "parameters": _parameter,
    "resourcegroup": _group,
    "resourceid": _resource_id,
    "subscription": _subscription,
    "variables": _variable,
}
