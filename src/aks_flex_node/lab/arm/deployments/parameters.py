"""What a deployment is given, held against what its template asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.deployments.evaluating import Place, Scope, evaluate
from aks_flex_node.lab.arm.deployments.problems import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

# By ARM's names, which match without regard to case: what it is to us, and how ARM shows it.
TYPES: dict[str, tuple[type, str]] = {
    "string": (str, "String"),
    "securestring": (str, "SecureString"),
    "int": (int, "Int"),
    "bool": (bool, "Bool"),
    "object": (dict, "Object"),
    "secureobject": (dict, "SecureObject"),
    "array": (list, "Array"),
}
SECURE = frozenset({"SecureString", "SecureObject"})
MASK = "*******"


@dataclass(frozen=True)
class Parameters:
    values: Mapping[str, Any]
    types: Mapping[str, str]  # as ARM shows them

    def shown(self) -> dict[str, Any]:
        """As everybody may see them who may read deployments."""
        return {name: shown(self.types[name], value) for name, value in self.values.items()}

    def masked(self) -> dict[str, Any]:
        """Values to calculate with where the result is shown."""
        return {name: masked(value) if self.types[name] in SECURE else value for name, value in self.values.items()}


def shown(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind} if kind in SECURE else {"type": kind, "value": value}


def masked(value: Any) -> Any:
    """Its shape is kept: templates ask for the keys of an object, and whether a string is empty."""
    if isinstance(value, dict):
        return {key: masked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [masked(each) for each in value]
    return MASK if isinstance(value, str) and value else value


def read(definitions: Mapping[str, Any], given: Mapping[str, Any], place: Place) -> Parameters:
    names = {name.lower(): name for name in definitions}
    if unknown := [name for name in given if name.lower() not in names]:
        raise TemplateError(
            f"The following parameters were supplied, but are not defined in the template: '{', '.join(unknown)}'. "
            f"The template defines: '{', '.join(definitions)}'."
        )
    told = {names[name.lower()]: value for name, value in given.items()}
    values: dict[str, Any] = {}
    for name, definition in definitions.items():
        values[name] = _value(name, definition, told, Scope(place, values, {}))
    return Parameters(values, {name: kind_of(each, f"parameter '{name}'") for name, each in definitions.items()})


def kind_of(definition: Mapping[str, Any], what: str) -> str:
    kind = str(definition.get("type", "")).lower()
    if kind not in TYPES:
        raise TemplateError(
            f"The {what} has the type '{definition.get('type')}', which is none of {', '.join(TYPES)}."
        )
    return TYPES[kind][1]


def _value(name: str, definition: Mapping[str, Any], told: Mapping[str, Any], before: Scope) -> Any:
    """A default may use the parameters before it."""
    kind = kind_of(definition, f"parameter '{name}'")
    if name in told:
        value = _given(name, told[name])
    elif "defaultValue" in definition:
        value = evaluate(definition["defaultValue"], before)
    else:
        raise TemplateError(f"The value for the template parameter '{name}' is not provided.")
    if not has_type(value, kind):
        raise TemplateError(f"The template parameter '{name}' must be of type '{kind}', and the value is not.")
    _check(name, definition, kind, value)
    return value


def _given(name: str, told: Any) -> Any:
    if not isinstance(told, dict) or "value" not in told:
        raise TemplateError(f"The template parameter '{name}' has no value; references to a key vault are not here.")
    return told["value"]


def has_type(value: Any, kind: str) -> bool:
    wanted = TYPES[kind.lower()][0]
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def _check(name: str, definition: Mapping[str, Any], kind: str, value: Any) -> None:
    allowed = definition.get("allowedValues")
    if allowed is not None and value not in allowed:
        repeated = "" if kind in SECURE else f" The value '{value}' is not part of the allowed value(s): '{allowed}'."
        raise TemplateError(f"The provided value for the template parameter '{name}' is not valid.{repeated}")
    if kind != "Bool":
        _check_size(name, definition, value if kind == "Int" else len(value))


def _check_size(name: str, definition: Mapping[str, Any], size: int) -> None:
    for limit in ("minValue", "minLength", "maxValue", "maxLength"):
        if limit not in definition:
            continue
        bound = definition[limit]
        if size < bound if limit.startswith("min") else size > bound:
            raise TemplateError(f"The value of the template parameter '{name}' is not valid: its {limit} is {bound}.")
