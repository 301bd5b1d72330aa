"""Reads the JSON or YAML that people write: settings of a node, of the template of a pool, or of a roll-out.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it, of `contract` and of
`node_changes`. It imports only those, by their place, PyYAML and the standard library.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import yaml

from .contract import ENVELOPE, POOL_READ_ONLY, READ_ONLY
from .node_changes import malformed_path

if TYPE_CHECKING:
    from collections.abc import Iterable

Document = dict[str, Any]
DERIVED = {"resourceGroup"}  # beside the properties in the output of az


class _RepeatedKeyError(ValueError):
    """A key that is repeated in a mapping."""


class _UniqueKeys(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise _RepeatedKeyError(f"line {key.start_mark.line + 1} repeats {str(key.value)[:80]!r}")
            seen.add(str(key.value))
        return node


def parse(content: bytes) -> Any:
    """Parses JSON or YAML to values of JSON. Raises ValueError for others, and for a key that is repeated."""
    try:
        return _json_value(_UniqueKeys(content).get_single_data())
    except _RepeatedKeyError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, IndexError) as error:
        # Its text can quote the file, which may contain secrets.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"{f'line {mark.line + 1}' if mark else 'it'} is neither JSON nor YAML") from None


def _json_value(value: Any) -> Any:
    """Converts YAML values to JSON: dates to strings, and drops null values, which the service treats as absent.
    Raises TypeError for other values, such as a set.
    """
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if not isinstance(value, date | str | int | float | None):
        raise TypeError(type(value).__name__)
    return value.isoformat() if isinstance(value, date) else value


def properties_of(document: Document, *, of_pool: bool = False) -> Document:
    """Returns the properties of a node, or the template of a pool, from a document with or without what the API has
    around them. Raises ValueError for an unknown name there, and for a value of a type that options cannot change.
    """
    properties: Any = document
    if "properties" in document:
        _check_names(document, {"properties", *ENVELOPE, *DERIVED}, "properties")
        properties = document["properties"]
    if of_pool and isinstance(properties, dict) and "template" in properties:
        _check_names(properties, {"template", "description", "provisioningState", *POOL_READ_ONLY}, "template")
        properties = properties["template"]
    if not isinstance(properties, dict):
        raise ValueError(f"{'template' if of_pool else 'properties'} has the wrong type")
    if path := malformed_path(properties):
        raise ValueError(f"{path} has the wrong type")
    return {name: value for name, value in properties.items() if name not in {*READ_ONLY, "provisioningState"}}


def _check_names(document: Document, known: Iterable[str], beside: str) -> None:
    if unknown := [name for name in document if name not in known]:
        raise ValueError(f"{unknown[0]} is unknown beside {beside}")
