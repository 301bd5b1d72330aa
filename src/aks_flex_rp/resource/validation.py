"""Parses and validates a request body. Returns the desired properties, or all problems."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.contract import ENVELOPE, POOL_READ_ONLY, READ_ONLY
from aks_flex_rp.arm.errors import Problem, unknown_properties
from aks_flex_rp.resource import rules
from aks_flex_rp.resource.effective import merge_properties
from aks_flex_rp.resource.properties import NO_IDENTITY, Properties, read_properties
from aks_flex_rp.store.model import PoolMembership

if TYPE_CHECKING:
    from aks_flex_rp.resource.rules import ValidationContext

MAX_BODY_BYTES = 1 << 20  # bytes; a hundred times what a node needs
MAX_DEPTH = 32
MAX_DESCRIPTION = 256
MAX_VALUES = 5_000  # each invalid value is reported, which costs more than to send it
MAX_TEMPLATE_BYTES = 1 << 16  # each node of the pool stores its effective properties
TEMPLATE = "properties.template"
SURROGATE = re.compile(r"\\u[dD]")


@dataclass(frozen=True)
class PoolTemplate:
    """The template of a pool's revision."""

    pool: str
    revision: int
    template: dict[str, Any]


@dataclass(frozen=True)
class PoolProperties:
    description: str
    template: dict[str, Any]


@dataclass(frozen=True)
class DesiredNode:
    """Desired state of a node from a request body."""

    properties: Properties  # the effective ones
    allow_downgrade: bool = False  # older versions than the current ones are allowed
    membership: PoolMembership | None = None  # of a node of a pool
    own: dict[str, Any] | None = None  # the own properties of a node of a pool, without secrets

    @property
    def secret(self) -> str | None:
        """Returns the service principal's secret if the body contains one."""
        return self.properties.secret

    def document(self) -> dict[str, Any]:
        """Returns the node's own properties without secrets, as stored and shown."""
        return dict(self.properties.document) if self.own is None else self.own


def join_pool(own: Properties, template: PoolTemplate, allow_downgrade: bool = False) -> DesiredNode:
    """Returns the desired state of a node of a pool, from its own properties and the template."""
    desired = stay_in_pool(dict(own.document), template)
    return replace(
        desired, properties=replace(desired.properties, secret=own.secret), allow_downgrade=allow_downgrade
    )


def stay_in_pool(own: dict[str, Any], template: PoolTemplate) -> DesiredNode:
    """Returns the desired state of a node of a pool from its own properties without a secret, and a template."""
    merged = merge_properties(template.template, own)
    membership = PoolMembership(template.pool, template.revision, merged)
    return DesiredNode(Properties(merged), False, membership, own)


def parse_body(body: bytes) -> dict[str, Any] | Problem:
    if len(body) > MAX_BODY_BYTES:
        return Problem("", f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        text = body.decode("utf-8-sig")  # no other encoding, because intermediaries may guess differently
        document = STRICT_JSON.decode(text)
        if SURROGATE.search(text):  # an escaped lone surrogate is not valid text
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        where = f"see line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        return Problem("", f"The request body is not JSON: {where}.")
    if not isinstance(document, dict):
        return Problem("", "The request body must be a JSON object.")
    return _too_large(text, document) or document


def validate_body(
    document: dict[str, Any], name: str, context: ValidationContext, template: PoolTemplate | None = None
) -> DesiredNode | list[Problem]:
    """Validates by the table, then by the rules. Rules also apply to valid values next to invalid ones.

    The rules of a node of a pool apply to its effective properties.
    """
    raw, problems = _raw_properties(document, name, READ_ONLY)
    if raw is None:
        return problems
    properties, wrong = read_properties(raw)
    problems += wrong
    if template:
        desired = join_pool(properties, template, context.allow_downgrade)
    else:
        auth = {"method": NO_IDENTITY, **properties.document.get("azureAuth", {})}
        properties = replace(properties, document={**properties.document, "azureAuth": auth})
        desired = DesiredNode(properties, context.allow_downgrade)
    targets = {problem.target for problem in problems}
    problems += [each for each in rules.check_rules(desired.properties, context) if not _below(each.target, targets)]
    return problems or desired


def validate_pool(document: dict[str, Any], name: str, context: ValidationContext) -> PoolProperties | list[Problem]:
    """Validates the body of a pool. The rules of nodes apply to its template, as far as they need no node."""
    raw, problems = _raw_properties(document, name, POOL_READ_ONLY)
    if raw is None:
        return problems
    description, given = raw.pop("description", ""), raw.pop("template", {})
    problems += unknown_properties(raw, (), "properties")
    if not isinstance(description, str) or len(description) > MAX_DESCRIPTION:
        text = f"The value must be a text of at most {MAX_DESCRIPTION} characters."
        problems.append(Problem("properties.description", text))
    if not isinstance(given, dict):
        return [*problems, Problem(TEMPLATE, "The value must be an object.")]
    template, found = read_properties(given)
    targets = {each.target for each in found}
    found += [each for each in rules.check_template_rules(template, context) if not _below(each.target, targets)]
    problems += [Problem(each.target.replace("properties", TEMPLATE, 1), each.message) for each in found]
    size = len(json.dumps(template.document))
    if size > MAX_TEMPLATE_BYTES:
        problems.append(
            Problem(
                TEMPLATE, f"The template has {size} bytes. The maximum is {MAX_TEMPLATE_BYTES}: each node has it."
            )
        )
    return problems or PoolProperties(description, dict(template.document))


def _raw_properties(
    document: dict[str, Any], name: str, read_only: tuple[str, ...]
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Returns the properties that a request can set, and the problems of what is around them."""
    problems = list(_envelope(document, name))
    raw = document.get("properties")
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        return None, [*problems, Problem("properties", "The value must be an object.")]
    problems += _state(raw)
    ignored = (*read_only, "provisioningState")
    return _without_nulls({key: value for key, value in raw.items() if key not in ignored}), problems


def _below(target: str, targets: set[str]) -> bool:
    """Returns whether a problem was already found at this path, above it or below it."""
    return any(_covers(each, target) or _covers(target, each) for each in targets)


def _covers(path: str, other: str) -> bool:
    return other == path or other.startswith((f"{path}.", f"{path}["))


def _envelope(document: dict[str, Any], name: str) -> list[Problem]:
    problems = unknown_properties(document, (*ENVELOPE, "properties"))
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


STRICT_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_keys)
