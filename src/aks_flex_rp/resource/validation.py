"""Parses and validates a request body. Returns the desired properties, or all problems."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aks_flex_rp.arm.errors import Problem, json_path, problem_from_pydantic
from aks_flex_rp.resource import rules
from aks_flex_rp.resource.models import ENVELOPE, READ_ONLY, Properties

if TYPE_CHECKING:
    from aks_flex_rp.resource.rules import ValidationContext

MAX_BODY_BYTES = 1 << 20  # bytes; a hundred times what a node needs
MAX_DEPTH = 32
MAX_VALUES = 5_000  # each invalid value is reported, which costs more than to send it
SURROGATE = re.compile(r"\\u[dD]")


@dataclass(frozen=True)
class DesiredNode:
    """Desired state of a node from a request body."""

    properties: Properties
    allow_downgrade: bool = False  # older versions than the current ones are allowed

    @property
    def secret(self) -> str | None:
        """Returns the service principal's secret if the body contains one."""
        principal = self.properties.azure_auth.service_principal
        return principal.client_secret.get_secret_value() if principal and principal.client_secret else None

    def document(self) -> dict[str, Any]:
        """Returns the properties without secrets, as stored and shown."""
        fields = self.properties.model_dump(exclude_none=True, exclude_defaults=False, mode="json")
        (fields["azureAuth"].get("servicePrincipal") or {}).pop("clientSecret", None)
        return {name: value for name, value in fields.items() if value != {}}


def parse_body(body: bytes) -> dict[str, Any] | Problem:
    if len(body) > MAX_BODY_BYTES:
        return Problem("", f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        text = body.decode("utf-8-sig")  # no other encoding, because intermediaries may guess differently
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_keys)
        if SURROGATE.search(text):  # an escaped lone surrogate is not valid text
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Problem("", f"The request body is not JSON: {error}.")
    if not isinstance(document, dict):
        return Problem("", "The request body must be a JSON object.")
    return _too_large(text, document) or document


def validate_body(document: dict[str, Any], name: str, context: ValidationContext) -> DesiredNode | list[Problem]:
    """Validates the schema, then the rules. Rules also apply to valid values next to invalid ones."""
    problems = list(_envelope(document, name))
    raw_properties = document.get("properties")
    if raw_properties is None:
        raw_properties = {}
    if not isinstance(raw_properties, dict):
        return [*problems, Problem("properties", "The value must be an object.")]
    problems += _state(raw_properties)
    raw_properties = {
        key: value for key, value in raw_properties.items() if key not in (*READ_ONLY, "provisioningState")
    }
    properties, wrong = _shape(_without_nulls(raw_properties))
    problems += wrong
    if properties is not None:
        targets = {problem.target for problem in problems}
        problems += [each for each in rules.check_rules(properties, context) if not _below(each.target, targets)]
    return problems or DesiredNode(properties or Properties(), context.allow_downgrade)


def _below(target: str, targets: set[str]) -> bool:
    """Returns whether a problem was already found at this path, above it or below it."""
    return any(_covers(each, target) or _covers(target, each) for each in targets)


def _covers(path: str, other: str) -> bool:
    return other == path or other.startswith((f"{path}.", f"{path}["))


def _envelope(document: dict[str, Any], name: str) -> list[Problem]:
    known = (*ENVELOPE, "properties")
    problems = [
        Problem(json_path(key), "Unknown property. Correct its name, or remove it.")
        for key in document
        if key not in known
    ]
    body_name = document.get("name")
    if body_name is not None and (not isinstance(body_name, str) or body_name.lower() != name.lower()):
        problems.append(Problem("name", "The name differs from the name in the URL. Remove or correct it."))
    return problems


def _state(properties: dict[str, Any]) -> list[Problem]:
    """Checks that a read-only state is unchanged, if it is sent."""
    if properties.get("provisioningState") in (None, "Succeeded"):
        return []
    return [
        Problem("properties.provisioningState", "This property is read-only and has the value Succeeded. Remove it.")
    ]


def _shape(properties: dict[str, Any]) -> tuple[Properties | None, list[Problem]]:
    """Validates the schema. Removes invalid values, so that the rest can be checked by the rules."""
    problems: list[Problem] = []
    while True:
        try:
            return Properties.model_validate(properties), problems
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        targets = {
            problem.target for problem in problems
        }  # a property that was removed here must not be reported as missing
        found = [problem_from_pydantic(each, "properties") for each in details]
        problems += [each for each in found if each.target not in targets]
        removed = [_remove(properties, each["loc"], is_missing=each["type"] == "missing") for each in details]
        if not any(removed):
            return None, problems


def _remove(properties: dict[str, Any], where: tuple[int | str, ...], *, is_missing: bool) -> bool:
    steps = [step for step in where if step != "[key]"]
    while steps:
        *parents, last = steps[:-1] if is_missing else steps
        holder = _at(properties, parents)
        if isinstance(holder, dict) and last in holder:
            del holder[str(last)]
            return True
        steps, is_missing = (
            steps[:-1],
            False,
        )  # the whole list is removed, because indexes of other items must not change
    return False


def _at(value: Any, path: list[int | str]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _without_nulls(value: Any) -> Any:
    """Removes null values, which mean the same as omitted ones."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _too_large(text: str, document: dict[str, Any]) -> Problem | None:
    """Checks depth and number of values, if the text has enough brackets and commas to exceed a limit."""
    containers = text.count("{") + text.count("[")
    if containers < MAX_DEPTH and containers + text.count(",") < MAX_VALUES:
        return None
    deepest, values = _measure(document)
    if deepest > MAX_DEPTH:
        return Problem("", f"The request body is nested more than {MAX_DEPTH} levels deep.")
    if values > MAX_VALUES:
        return Problem("", f"The request body has {values} values. The maximum is {MAX_VALUES}.")
    return None


def _measure(value: Any) -> tuple[int, int]:
    """Returns the depth and the number of values."""
    deepest, count, todo = 0, 0, [(value, 1)]
    while todo:
        each, depth = todo.pop()
        deepest, count = max(deepest, depth), count + 1
        below = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        todo += [(child, depth + 1) for child in below]
    return deepest, count


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object. Rejects duplicate names, because their meaning is ambiguous."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"'{name[:80]}' is a duplicate name")
        made[name] = value
    return made


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
