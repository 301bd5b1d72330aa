"""The language of ARM templates, as far as the shipped templates use it: parser, functions and evaluation.

Errors quote expressions, never values, which may be secret.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aks_flex_lab.arm.arm_errors import LabArmError

if TYPE_CHECKING:
    from collections.abc import Mapping


class TemplateError(LabArmError):
    """A template or its parameters are invalid."""

    def __init__(self, message: str, code: str = "InvalidTemplate") -> None:
        super().__init__(400, code, message)


# Expressions have the syntax of Python's calls, attributes and items, but other texts, and names that are keywords.
EXPRESSION_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z_]\w*)|\s+|\d+|[()\[\].,]")


def is_expression(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and not text.startswith("[[")


def parse_expression(text: str) -> ast.expr:
    """Parses a string in brackets; raises TemplateError for invalid syntax."""

    def python_token(found: re.Match[str]) -> str:
        if found[1] is not None:
            return repr(found[1].replace("''", "'"))
        return f"{found[0]}_" if keyword.iskeyword(found[0]) else found[0]

    try:
        if rest := EXPRESSION_TOKEN.sub("", text[1:-1]):
            raise SyntaxError(f"{rest} is not expected there")
        return ast.parse(EXPRESSION_TOKEN.sub(python_token, text[1:-1]).strip(), mode="eval").body
    except SyntaxError as error:
        raise TemplateError(f"The template language expression '{text}' is not valid: {error.msg}.") from None


def _name(python_name: str) -> str:
    return python_name[:-1] if keyword.iskeyword(python_name[:-1]) else python_name


@dataclass(frozen=True)
class DeploymentTarget:
    """The scope and name of a deployment."""

    subscription: str
    group: str
    deployment: str

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"

    def resource_id(self, kind: str, *names: str) -> str:
        """Returns the ID of a resource of the group from its type and the segments of its name."""
        namespace, *types = kind.split("/")
        if not types or len(types) != len(names) or not all(names):
            raise TemplateError(
                f"The type '{kind}' and the name '{'/'.join(names)}' have incorrect segment lengths: a name has one "
                "segment for each of the type after its namespace."
            )
        parts = (f"/{one}/{other}" for one, other in zip(types, names, strict=True))
        return f"{self.group_id}/providers/{namespace}{''.join(parts)}"


DEFERRED: Final = object()  # stands for a value that is known only at the end of the deployment
CallAction: TypeAlias = Callable[[str, str, str], Any]  # an action of a resource with its ID and an API version


@dataclass(frozen=True)
class EvaluationScope:
    target: DeploymentTarget
    parameters: Mapping[str, Any]
    index: int | None = None  # of the copy loop
    call_action: CallAction | None = None  # None where expressions must not depend on existing resources


def evaluate(value: Any, scope: EvaluationScope) -> Any:
    if isinstance(value, list):
        return [evaluate(each, scope) for each in value]
    if isinstance(value, dict):
        if "copy" in value:
            raise TemplateError("A property has a copy loop, which the lab does not support.")
        return {key: evaluate(each, scope) for key, each in value.items()}
    if not isinstance(value, str) or not is_expression(value):
        return value[1:] if isinstance(value, str) and value.startswith("[[") else value
    tree = parse_expression(value)
    try:
        return _evaluate_tree(tree, scope)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        message = str(error) if type(error) is ValueError else "its arguments are invalid"
        raise TemplateError(f"Unable to evaluate the template language expression '{value}': {message}.") from None


def _evaluate_tree(tree: ast.expr, scope: EvaluationScope) -> Any:
    match tree:
        case ast.Constant():
            return tree.value
        case ast.Attribute():
            return _member(_evaluate_tree(tree.value, scope), _name(tree.attr))
        case ast.Subscript():
            return _member(_evaluate_tree(tree.value, scope), _evaluate_tree(tree.slice, scope))
        case ast.Call(func=ast.Name(id="if_"), args=[condition, yes, no]):
            found = _evaluate_tree(condition, scope)
            if not isinstance(found, bool):
                raise ValueError("the condition is not a Boolean value")
            return _evaluate_tree(yes if found else no, scope)  # the other may refer to what does not exist
        case ast.Call(func=ast.Name(id=name)):
            arguments = [_evaluate_tree(each, scope) for each in tree.args]
            if DEFERRED in arguments:
                raise ValueError("a function uses the result of an action, which the lab does not support")
            return _call(_name(name), arguments, scope)
    raise ValueError("its syntax is not supported")


def _call(name: str, arguments: list[Any], scope: EvaluationScope) -> Any:
    match name.lower(), arguments:
        case "parameters", [str(wanted)]:
            found = [value for known, value in scope.parameters.items() if known.lower() == wanted.lower()]
            if not found:
                raise ValueError(f"the template parameter '{wanted}' is not found")
            return found[0]
        case "copyindex", [] if scope.index is not None:
            return scope.index
        case "resourceid", [str(kind), *names]:
            return scope.target.resource_id(kind, *names)
        case function, _ if function in FUNCTIONS:
            return FUNCTIONS[function](*arguments)
        case function, [str(resource), str(version)] if function.startswith("list") and scope.call_action:
            return scope.call_action(name, resource, version)
    raise ValueError(f"the function '{name}' is unknown, or the lab does not support it there")


def _member(of: Any, key: Any) -> Any:
    """Returns a member of a value; property names are case-insensitive."""
    if of is DEFERRED:
        return of
    if isinstance(of, dict):
        for name, value in of.items():
            if name.lower() == key.lower():
                return value
        raise ValueError("the property does not exist")
    if not isinstance(of, list) or not isinstance(key, int) or not 0 <= key < len(of):
        raise ValueError("the element does not exist")
    return of[key]


def _concat(*parts: Any) -> Any:
    if all(isinstance(each, list) for each in parts):
        return [element for each in parts for element in each]
    return "".join(_string(each) for each in parts)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _format(pattern: str, *values: Any) -> str:
    if any(int(number) >= len(values) for number in re.findall(r"\{(\d+)\}", pattern)):
        raise ValueError("the placeholders do not match the values")
    return re.sub(r"\{(\d+)\}", lambda found: _string(values[int(found[1])]), pattern)


def _union(first: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Merges objects; values of the same name are replaced, because the templates merge only labels."""
    if not all(isinstance(each, dict) for each in (first, *others)):
        raise ValueError("all arguments must be objects")
    return {key: value for each in (first, *others) for key, value in each.items()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "coalesce": lambda *values: next((each for each in values if each is not None), None),
    "concat": _concat,
    "createarray": lambda *elements: [*elements],
    "createobject": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "empty": lambda value: value is None or len(value) == 0,
    "equals": lambda one, other: type(one) is type(other) and bool(one == other),
    "format": _format,
    "length": len,
    "not": lambda value: not value,
    "null": lambda: None,
    "tryget": lambda of, key: next((value for name, value in of.items() if name.lower() == key.lower()), None),
    "union": _union,
}
