"""Edit form of a node or of a pool's template: properties as form fields, and form fields as properties. Pure.

Properties without a form field are edited as JSON in one more field, so that no property is lost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.node_changes import table
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.dashboard import document_diff
from aks_flex_rp.resource import validation
from aks_flex_rp.resource.view import format_taint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_rp.arm.errors import ArmError
    from aks_flex_rp.dashboard.document_diff import Path

Document = dict[str, Any]
NODE = ("nodeConfig",)
WINDOW = (*NODE, "updatePolicy", "maintenanceWindow")
VERSIONS = ("kubernetes", "containerd", "runc", "cni", "npd", "agent")
DAYS: tuple[str, ...] = tuple(table()["nodeConfig.updatePolicy.maintenanceWindow.days"]["choices"])
TEXTS: dict[str, Path] = {
    **{f"version-{name}": ("versions", name) for name in VERSIONS},
    "window-start": (*WINDOW, "start"),
    "window-zone": (*WINDOW, "timeZone"),
}
NUMBERS: dict[str, Path] = {"max-pods": (*NODE, "maxPods"), "window-minutes": (*WINDOW, "durationMinutes")}
# Each check box with its path and default.
TICKS: dict[str, tuple[Path, bool]] = {
    "monitored": (("continuousMonitoring",), False),
    "paused": ((*NODE, "updatePolicy", "paused"), False),
    "leaves": ((*NODE, "unbootstrapOnDelete"), True),
}
DRIFT, LABELS, TAINTS = (*NODE, "driftPolicy"), (*NODE, "labels"), (*NODE, "taints")
WINDOW_DAYS = (*WINDOW, "days")
REST, SECRET = "rest", "client-secret"
PRINCIPAL = ("azureAuth", "servicePrincipal")
FIELDS_BY_PATH: dict[Path, str] = {
    **{path: name for name, path in {**TEXTS, **NUMBERS}.items()},
    **{path: name for name, (path, _) in TICKS.items()},
    DRIFT: "drift",
    LABELS: "labels",
    TAINTS: "taints",
    WINDOW_DAYS: "window-days",
}
ENTER_ABOVE = "Enter the secret in its field above."
REMOVE_IT = "A template contains no secrets: all nodes of the pool would have the same one. Remove clientSecret."
ALLOW_DOWNGRADE = "To downgrade, select “Allow downgrade” below."
_SECRET = re.compile(r'("clientSecret"\s*:\s*)"(?:[^"\\]|\\.)*"?')


@dataclass(frozen=True)
class FieldError:
    """An error message at a form field."""

    field: str  # empty for an error of the whole form
    message: str


@dataclass
class ParsedForm:
    """What a posted form describes, and its errors."""

    document: Document
    errors: list[FieldError] = field(default_factory=list)


def form_fields(properties: Document) -> dict[str, str]:
    """Returns the form fields of these properties."""
    texts = {name: str(document_diff.value_at(properties, path) or "") for name, path in {**TEXTS, **NUMBERS}.items()}
    ticks = {name: _tick(document_diff.value_at(properties, path), usual) for name, (path, usual) in TICKS.items()}
    opened = document_diff.value_at(properties, WINDOW_DAYS) or ()
    labels: Document = document_diff.value_at(properties, LABELS) or {}
    rest = document_diff.apply_values(properties, dict.fromkeys(FIELDS_BY_PATH))
    return {
        **texts,
        **ticks,
        **{f"day-{day}": "yes" if day in opened else "" for day in DAYS},
        "drift": document_diff.value_at(properties, DRIFT) or "repair",
        "labels": "\n".join(f"{key}={value}" for key, value in sorted(labels.items())),
        "taints": "\n".join(map(format_taint, document_diff.value_at(properties, TAINTS) or ())),
        REST: json.dumps(rest, indent=2, ensure_ascii=False),
    }


def posted_fields(form: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields of a posted form to show again, unchanged but without secrets."""
    names = ("labels", "taints", "drift", *TEXTS, *NUMBERS, *TICKS, *(f"day-{day}" for day in DAYS))
    rest = _SECRET.sub(r'\1""', form.get(REST, ""))
    return {**{name: form.get(name, "").replace("\r\n", "\n") for name in names}, REST: rest}


def parse_form(form: Mapping[str, str], before: Document, *, of_pool: bool = False) -> ParsedForm:
    """Parses a posted form. Omits default values, unless `before` sets them explicitly."""
    errors: list[FieldError] = []
    values: dict[Path, object] = {path: form.get(name, "").strip() or None for name, path in TEXTS.items()}
    for name, path in NUMBERS.items():
        values[path] = parse_number(name, form.get(name, "").strip(), errors)
    usual: dict[Path, tuple[object, object]] = {
        path: (form.get(name) == "yes", default) for name, (path, default) in TICKS.items()
    }
    usual[DRIFT] = (form.get("drift") or "repair", "repair")
    usual[LABELS] = (parse_labels("labels", form.get("labels", ""), errors), {})
    usual[TAINTS] = (_taints(form.get("taints", ""), errors), [])
    usual[WINDOW_DAYS] = ([day for day in DAYS if form.get(f"day-{day}") == "yes"], [])
    for path, (value, default) in usual.items():
        was = document_diff.value_at(before, path)
        values[path] = value if value != default or was == default else None
    properties = document_diff.apply_values(
        _rest(form.get(REST, ""), errors, REMOVE_IT if of_pool else ENTER_ABOVE), values
    )
    if secret := "" if of_pool else form.get(SECRET, ""):
        if isinstance(document_diff.value_at(properties, PRINCIPAL), dict):
            properties = document_diff.apply_values(properties, {(*PRINCIPAL, "clientSecret"): secret})
        else:
            errors.append(
                FieldError(
                    SECRET,
                    "The settings below do not contain a service principal. Remove the secret, or set `azureAuth`.",
                )
            )
    return ParsedForm(properties, errors)


def problems_of(error: ArmError) -> list[Problem]:
    """Returns the problems that a response of the API names."""
    return [Problem(each.target, each.message) for each in error.details or (error,)]


def locate_errors(problems: Iterable[Problem], taints: str = "") -> list[FieldError]:
    """Maps validation problems of the API to form fields."""
    return [_located(each, [line for line in taints.splitlines() if line.strip()]) for each in problems]


def _located(problem: Problem, taints: list[str]) -> FieldError:
    target, message = problem.target.removeprefix("properties."), problem.message
    if target == "azureAuth.servicePrincipal.clientSecret":
        return FieldError(SECRET, message)
    if target.startswith("versions.") and "allowDowngrade" in message:
        message = f"{message.partition('. ')[0].removesuffix('.')}. {ALLOW_DOWNGRADE}"  # the API names its own option
    for path, name in FIELDS_BY_PATH.items():
        dotted_path = ".".join(path)
        if target == dotted_path or target.startswith((f"{dotted_path}.", f"{dotted_path}[")):
            return FieldError(name, _which(target.removeprefix(dotted_path), taints) + message)
    return FieldError(
        REST if problem.target.startswith("properties.") else "", f"{target}: {message}".removeprefix(": ")
    )


def _which(below: str, taints: list[str]) -> str:
    """Returns the taint that an index refers to, as a prefix of the message."""
    found = re.match(r"\[(\d+)\]", below)
    if found and int(found[1]) < len(taints):
        return f"{taints[int(found[1])].strip()}: "
    return ""


def _tick(value: object, usual: bool) -> str:
    return "yes" if (usual if value is None else bool(value)) else ""


def parse_number(name: str, text: str, errors: list[FieldError]) -> int | None:
    """Parses the number of a field; None if it is empty or invalid."""
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    errors.append(FieldError(name, "Enter a whole number."))
    return None


def parse_labels(name: str, text: str, errors: list[FieldError]) -> dict[str, str]:
    """Parses the labels of a field, one in each line."""
    labels: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            errors.append(FieldError(name, f"“{line[:80]}” is not a label. Use KEY=VALUE."))
        elif key in labels:
            errors.append(FieldError(name, f"The key “{key[:80]}” is duplicated."))
        else:
            labels[key] = value
    return labels


def _taints(text: str, errors: list[FieldError]) -> list[dict[str, str]]:
    taints = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, effect = (part.strip() for part in line.rpartition(":"))
        key, equals, value = (part.strip() for part in name.partition("="))
        if not colon or not key:
            errors.append(FieldError("taints", f"“{line[:80]}” is not a taint. Use KEY=VALUE:EFFECT or KEY:EFFECT."))
            continue
        taints.append({"key": key, **({"value": value} if equals else {}), "effect": effect})
    return taints


def _rest(text: str, errors: list[FieldError], message: str) -> Document:
    parsed = validation.parse_body(text.encode("utf-8", "replace") if text.strip() else b"{}")
    if isinstance(parsed, Problem):
        errors.append(FieldError(REST, parsed.message.replace("The body", "This")))
        return {}
    if document_diff.value_at(parsed, (*PRINCIPAL, "clientSecret")) is not None:
        errors.append(FieldError(REST, message))
    twice = [
        document_diff.name_of(path) for path in FIELDS_BY_PATH if document_diff.value_at(parsed, path) is not None
    ]
    errors += [FieldError(REST, f"Set {name} in its field above.") for name in twice]
    return parsed
