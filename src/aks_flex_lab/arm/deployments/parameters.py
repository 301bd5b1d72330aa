"""Reads the request body of a deployment, and validates its parameters with the template's definitions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.deployments.evaluation import DeploymentTarget, EvaluationScope, evaluate
from aks_flex_lab.arm.deployments.template_errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
MASK = "*******"


@dataclass(frozen=True)
class DeploymentParameters:
    values: Mapping[str, Any]
    types: Mapping[str, str]  # with ARM's spelling

    def shown(self) -> dict[str, Any]:
        """Returns the parameters without secure values, for callers that can read deployments."""
        return {name: public_value(self.types[name], value) for name, value in self.values.items()}

    def masked(self) -> dict[str, Any]:
        """Returns the values with secure ones masked, for evaluations whose result is shown."""
        return {
            name: mask(value) if self.types[name] in SECURE_TYPES else value for name, value in self.values.items()
        }


def public_value(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind} if kind in SECURE_TYPES else {"type": kind, "value": value}


def mask(value: Any) -> Any:
    """Masks a value but keeps its shape, because templates use keys of objects and check for empty strings."""
    if isinstance(value, dict):
        return {key: mask(each) for key, each in value.items()}
    if isinstance(value, list):
        return [mask(each) for each in value]
    return MASK if isinstance(value, str) and value else value


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
        values[name] = _value(name, definition, known, EvaluationScope(target, values, {}))
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
        value = _parameter_value(name, known[name])
    elif "defaultValue" in definition:
        value = evaluate(definition["defaultValue"], before)
    else:
        raise TemplateError(f"The value for the template parameter '{name}' is not provided.")
    if not has_type(value, kind):
        raise TemplateError(f"The template parameter '{name}' must be of type '{kind}', and the value is not.")
    _check(name, definition, kind, value)
    return value


def _parameter_value(name: str, value: Any) -> Any:
    if not isinstance(value, dict) or "value" not in value:
        raise TemplateError(
            f"The template parameter '{name}' has no value. The lab does not support references to a key vault."
        )
    return value["value"]


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
    if kind != "Bool":
        _check_size(name, definition, value if kind == "Int" else len(value))


def _check_size(name: str, definition: Mapping[str, Any], size: int) -> None:
    for limit in ("minValue", "minLength", "maxValue", "maxLength"):
        if limit not in definition:
            continue
        bound = definition[limit]
        if size < bound if limit.startswith("min") else size > bound:
            raise TemplateError(f"The value of the template parameter '{name}' is not valid: its {limit} is {bound}.")


# az inserts the text of the template into the request, after a name without quotes.
BODY_TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*")|(//[^\n]*|/\*.*?\*/)|(, template:)', re.DOTALL)


def deployment_properties(content: bytes) -> dict[str, Any]:
    """Reads the properties of a requested deployment."""
    try:
        properties: dict[str, Any] = json.loads(BODY_TOKEN.sub(_to_json_token, content), strict=False)["properties"]
        mode = str(properties.get("mode") or "Incremental")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LabArmError(400, "InvalidRequestContent", "The request content was invalid.") from None
    if mode.lower() != "incremental":
        message = "The lab supports only incremental deployments, which remove no resources."
        raise LabArmError(400, "InvalidDeploymentMode", message)
    if "template" not in properties:
        raise LabArmError(
            400, "InvalidTemplate", "The lab supports only templates in the request, not links to templates."
        )
    return properties


def _to_json_token(found: re.Match[bytes]) -> bytes:
    if found[2]:
        return b" "
    return b', "template":' if found[3] else found[1]
