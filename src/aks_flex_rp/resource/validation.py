"""Parses a request body and validates it: returns the desired properties, or all problems at once."""

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

MAX_BODY_BYTES = 1 << 20  # bytes of a body: a hundred times what any node needs
MAX_DEPTH = 32
MAX_VALUES = 5_000  # values: each that is wrong is told, which costs more than it did to send it
SURROGATE = re.compile(r"\\u[dD]")


@dataclass(frozen=True)
class DesiredNode:
    """What a person asks a node to be."""

    properties: Properties
    allow_downgrade: bool = False  # where that is an older version than it has, it is meant

    @property
    def secret(self) -> str | None:
        """The service principal's secret, when the body has one."""
        principal = self.properties.azure_auth.service_principal
        return principal.client_secret.get_secret_value() if principal and principal.client_secret else None

    def document(self) -> dict[str, Any]:
        """As it is kept and shown: what was said, without secrets."""
        fields = self.properties.model_dump(exclude_none=True, exclude_defaults=False, mode="json")
        (fields["azureAuth"].get("servicePrincipal") or {}).pop("clientSecret", None)
        return {name: value for name, value in fields.items() if value != {}}


def parse_body(body: bytes) -> dict[str, Any] | Problem:
    if len(body) > MAX_BODY_BYTES:
        return Problem("", f"The body has more than {MAX_BODY_BYTES} bytes.")
    try:
        text = body.decode("utf-8-sig")  # and no other that Python would guess: what is between us may not
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
        if SURROGATE.search(text):  # half a character, written as an escape, is no text
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Problem("", f"The body is not JSON: {error}.")
    if not isinstance(document, dict):
        return Problem("", "The body must be a JSON object.")
    return _too_large(text, document) or document


def validate_body(document: dict[str, Any], name: str, context: ValidationContext) -> DesiredNode | list[Problem]:
    """Shape first; what has the right shape is judged by the rules even when its neighbour has not."""
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
    """Whether something at this place, or above or below it, was found wrong already."""
    return any(_covers(each, target) or _covers(target, each) for each in targets)


def _covers(path: str, other: str) -> bool:
    return other == path or other.startswith((f"{path}.", f"{path}["))


def _envelope(document: dict[str, Any], name: str) -> list[Problem]:
    known = (*ENVELOPE, "properties")
    problems = [
        Problem(json_path(key), "This property is not known here. Correct its name, or leave it out.")
        for key in document
        if key not in known
    ]
    body_name = document.get("name")
    if body_name is not None and (not isinstance(body_name, str) or body_name.lower() != name.lower()):
        problems.append(Problem("name", "The name differs from the one in the URL. Leave it out, or correct it."))
    return problems


def _state(properties: dict[str, Any]) -> list[Problem]:
    """It is read-only, and a client that sends another one has misunderstood something."""
    if properties.get("provisioningState") in (None, "Succeeded"):
        return []
    return [Problem("properties.provisioningState", "This property is read-only and is Succeeded. Leave it out.")]


def _shape(properties: dict[str, Any]) -> tuple[Properties | None, list[Problem]]:
    """Take out what is of the wrong shape and go on with the rest, so that the rest is checked as well."""
    problems: list[Problem] = []
    while True:
        try:
            return Properties.model_validate(properties), problems
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        targets = {problem.target for problem in problems}  # to be missing once it was taken out is no second problem
        found = [problem_from_pydantic(each, "properties") for each in details]
        problems += [each for each in found if each.target not in targets]
        removed = [_take_out(properties, each["loc"], is_missing=each["type"] == "missing") for each in details]
        if not any(removed):
            return None, problems


def _take_out(properties: dict[str, Any], where: tuple[int | str, ...], *, is_missing: bool) -> bool:
    steps = [step for step in where if step != "[key]"]
    while steps:
        *parents, last = steps[:-1] if is_missing else steps
        holder = _at(properties, parents)
        if isinstance(holder, dict) and last in holder:
            del holder[str(last)]
            return True
        steps, is_missing = steps[:-1], False  # an item of a list cannot go alone: its numbers name its neighbours
    return False


def _at(value: Any, path: list[int | str]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _without_nulls(value: Any) -> Any:
    """To say null is to leave it out."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _too_large(text: str, document: dict[str, Any]) -> Problem | None:
    """Counts only where the text has enough brackets and commas to be too deep or to have too many values."""
    containers = text.count("{") + text.count("[")
    if containers < MAX_DEPTH and containers + text.count(",") < MAX_VALUES:
        return None
    deepest, values = _measure(document)
    if deepest > MAX_DEPTH:
        return Problem("", f"The body is nested more than {MAX_DEPTH} levels deep.")
    if values > MAX_VALUES:
        return Problem("", f"The body has {values} values, and may have {MAX_VALUES}.")
    return None


def _measure(value: Any) -> tuple[int, int]:
    """How deep it is, and how many values are in it."""
    deepest, count, todo = 0, 0, [(value, 1)]
    while todo:
        each, depth = todo.pop()
        deepest, count = max(deepest, depth), count + 1
        below = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        todo += [(child, depth + 1) for child in below]
    return deepest, count


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Of a name that is there twice nobody knows which value was meant."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"'{name[:80]}' is there twice")
        made[name] = value
    return made


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
