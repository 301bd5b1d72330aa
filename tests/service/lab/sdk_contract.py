"""Checks a JSON document against a model of the Azure SDK: no unknown property, right types, known values."""

from __future__ import annotations

import datetime
import re
import types
import typing
from collections.abc import MutableMapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.mgmt.containerservice import models
from azure.mgmt.containerservice.models import _models

if TYPE_CHECKING:
    from collections.abc import Iterator

# The model of an answer, by the method and the end of the path.
ANSWERS: tuple[tuple[str, str, type], ...] = (
    ("GET|PUT", r"/agentPools/[^/]+/machines/[^/]+", models.Machine),
    ("GET", r"/agentPools/[^/]+/machines", models.Machine),
    ("GET|PUT", r"/agentPools/[^/]+", models.AgentPool),
    ("GET", r"/agentPools", models.AgentPool),
    ("POST", r"/listBootstrapData", models.PoolBootstrapData),
    ("GET", r"/managedClusters/[^/]+", models.ManagedCluster),
    ("GET", r"/operations/[^/]+", models.OperationStatusResult),
)
NAMES = {"_models": models, "datetime": datetime}


def answer_problems(method: str, url: str, status: int, document: Any) -> list[str]:
    """Returns where an answer with a body differs from the SDK's model for this request."""
    path = urlsplit(url).path
    if status >= 400:
        return problems(document, models.ErrorResponse)
    for methods, pattern, model in ANSWERS:
        if re.fullmatch(methods, method) and re.search(f"{pattern}$", path, re.IGNORECASE):
            is_list = isinstance(document, dict) and set(document) == {"value"}
            items = document["value"] if is_list else [document]
            return [each for item in items for each in problems(item, model)]
    return [f"no model is known for {method} {path}"]


def problems(document: Any, model: type, path: str = "") -> list[str]:
    """Returns where a document differs from a model of the SDK."""
    if not isinstance(document, dict):
        return [f"{path or '(document)'}: not an object"]
    fields = {each._rest_name: (name, each) for name, each in _fields(model)}
    hints = typing.get_type_hints(model, vars(_models), NAMES)
    found = [f"{path}{name}: unknown to {model.__name__}" for name in document if name not in fields]
    for name, (attribute, _) in fields.items():
        is_optional = type(None) in typing.get_args(hints[attribute])
        if document.get(name) is None:
            found += [] if is_optional and name not in document else [f"{path}{name}: missing or null"]
        else:
            found += _value_problems(document[name], hints[attribute], f"{path}{name}")
    return found


def _fields(model: type) -> Iterator[tuple[str, Any]]:
    model()  # the SDK collects the fields of a class when it makes the first object
    yield from model._attr_to_rest_field.items()  # type: ignore[attr-defined]


def _value_problems(value: Any, hint: Any, path: str) -> list[str]:  # noqa: PLR0911
    origin, arguments = typing.get_origin(hint), [each for each in typing.get_args(hint) if each is not type(None)]
    if origin in {typing.Union, types.UnionType}:
        enums = [each for each in arguments if isinstance(each, type) and issubclass(each, Enum)]
        if enums:
            known = {each.value for each in enums[0]}
            return [] if value in known else [f"{path}: {value!r} is none of {sorted(known)}"]
        return _value_problems(value, arguments[0], path)
    if origin is list:
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        return [each for item in value for each in _value_problems(item, arguments[0], f"{path}[]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{path}: not an object"]
        return [each for item in value.values() for each in _value_problems(item, arguments[1], f"{path}{{}}")]
    if hint is datetime.datetime:
        return [] if _is_time(value) else [f"{path}: {value!r} is not a time"]
    if isinstance(hint, type) and issubclass(hint, MutableMapping):
        return problems(value, hint, f"{path}.")
    is_right = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return [] if is_right else [f"{path}: {value!r} is not {hint.__name__}"]


def _is_time(value: object) -> bool:
    try:
        datetime.datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True
