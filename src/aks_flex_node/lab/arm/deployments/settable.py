"""What somebody can have said of a flex node, by its contract: neither what the service adds, nor defaults."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

ROOT = "#/definitions/FlexNodeConfigProperties"


def settable(properties: Any) -> Any:
    """Two descriptions of the same node are the same after this."""
    return _pruned(properties, {"$ref": ROOT})


def _pruned(value: Any, schema: dict[str, Any]) -> Any:
    known = _definition(schema).get("properties")
    if not isinstance(value, dict) or known is None:
        return value
    kept = {}
    for key, each in value.items():
        told = known.get(key, {})
        if each is None or told.get("readOnly") or told.get("x-ms-secret") or each == told.get("default"):
            continue
        pruned = _pruned(each, told)
        if pruned not in ({}, []):
            kept[key] = pruned
    return kept


def _definition(schema: dict[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return _contract()["definitions"].get(name, {}) if name else schema


@cache
def _contract() -> dict[str, Any]:
    text = files("aks_flex_rp.api").joinpath("openapi.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document
