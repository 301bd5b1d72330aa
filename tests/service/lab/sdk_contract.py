"""Checks answers against the Azure SDK: a JSON document against its model (no unknown property, right types, known
values), and the headers against its pollers.
"""

from __future__ import annotations

import datetime
import re
import types
import typing
from collections.abc import MutableMapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from azure.mgmt.containerservice import models
from azure.mgmt.containerservice._configuration import ContainerServiceClientConfiguration
from azure.mgmt.containerservice.models import _models
from azure.mgmt.core.polling.arm_polling import AzureAsyncOperationPolling, BodyContentPolling

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
ENDED = frozenset({"Succeeded", "Failed", "Canceled"})


def sdk_api_version() -> str:
    """Returns the API version that the SDK sends."""
    credential: Any = object()
    return str(ContainerServiceClientConfiguration(credential, "subscription").api_version)


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


def header_problems(answer: Any) -> list[str]:
    """Returns what the SDK's pollers miss in the headers of an answer: of one that starts an operation, and of one
    about an operation in progress. They read no header ETag; the eTag is in the body.
    """
    request, response = answer.http_request, answer.http_response
    if response.status_code >= 400:
        return []
    if request.method == "GET":
        is_pending = response.status_code == 202 or _status(response) == "InProgress"
        return _retry_after_problems(response) if is_pending else []
    if response.status_code != 202 and BodyContentPolling._get_provisioning_state(response) in {*ENDED, None}:
        return []
    found = _retry_after_problems(response)
    if not AzureAsyncOperationPolling[Any, Any]().can_poll(answer):
        found.append("Azure-AsyncOperation: missing")
    for name in ("Azure-AsyncOperation", "Location"):
        found += _link_problems(name, response.headers.get(name, ""), request.url)
    return found


def _status(response: Any) -> str:
    return str(response.json().get("status")) if response.body() else ""


def _retry_after_problems(response: Any) -> list[str]:
    seconds = response.headers.get("Retry-After", "")
    return [] if re.fullmatch(r"\d+", seconds) else [f"Retry-After: {seconds!r} is no number of seconds"]


def _link_problems(name: str, link: str, asked: str) -> list[str]:
    found, origin = urlsplit(link), urlsplit(asked)
    if (found.scheme, found.netloc) != (origin.scheme, origin.netloc):
        return [f"{name}: {link!r} is no URL of {origin.netloc}"]
    is_versioned = parse_qs(found.query) == {"api-version": [sdk_api_version()]}
    return [] if is_versioned else [f"{name}: {link!r} has another API version"]


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
