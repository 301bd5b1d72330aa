"""Form that starts a roll-out: its defaults, the body of the API that it means, and errors by field. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from aks_flex_rp.dashboard.setting_fields import FieldError, ParsedForm, parse_labels, parse_number, problems_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aks_flex_rp.arm.errors import ArmError

Document = dict[str, Any]
DEFAULTS = {
    "waves": "1, 10%, 50%, 100%",
    "max-unavailable": "10%",
    "soak": "10",
    "on-failure": "reverse",
    "max-failures": "0",
    "domain-label": "",
    "domain-max": "1",
    "canary": "",
    "selector": "",
    "approval": "",
    "gates": "",
    "node-minutes": "60",
    "stage-minutes": "10",
    "downgrade": "",
    "replace": "",
}
FIELDS = ("name", "revision", *DEFAULTS)
APPROVAL = {"name": "approval", "timeoutSeconds": 604_800, "approval": {}}
# Numbers with their property and the factor to its unit.
NUMBERS = {
    "soak": ("soakSeconds", 60),
    "max-failures": ("maxFailures", 1),
    "node-minutes": ("nodeTimeoutSeconds", 60),
    "stage-minutes": ("stageTimeoutSeconds", 60),
}
# Longer paths first: the first that fits is the field.
FIELDS_BY_PATH = {
    "failureDomain.maxUnavailable": "domain-max",
    "failureDomain": "domain-label",
    "maxUnavailable": "max-unavailable",
    "canarySelector": "canary",
    "nodeSelector": "selector",
    "onFailure": "on-failure",
    "allowDowngrade": "downgrade",
    "replaceActive": "replace",
    "revision": "revision",
    "waves": "waves",
    "gates": "gates",
    **{name: field for field, (name, _) in NUMBERS.items()},
}
FIELDS_BY_CODE = {
    "RevisionBarred": "revision",
    "RevisionNotFound": "revision",
    "RolloutActive": "replace",
    "RolloutExists": "name",
    "InvalidResourceName": "name",
}


def suggested_name(revision: int, taken: Collection[str]) -> str:
    """Returns a name that no roll-out of the pool has."""
    name, number = f"revision-{revision}", 1
    while name in taken:
        number += 1
        name = f"revision-{revision}-{number}"
    return name


def posted_values(form: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields of a posted form to show again, unchanged."""
    return {name: form.get(name, "").replace("\r\n", "\n") for name in FIELDS}


def parse_rollout_form(form: Mapping[str, str]) -> ParsedForm:
    """Parses a posted form to the body of the API. What the API checks is left to it."""
    values = {name: text.strip() for name, text in posted_values(form).items()}
    properties: Document = {}
    parsed = ParsedForm({"properties": properties})
    for name, (key, factor) in {"revision": ("revision", 1), **NUMBERS}.items():
        number = parse_number(name, values[name], parsed.errors)
        if number is not None:
            properties[key] = number * factor
    properties["waves"] = [each for each in re.split(r"[,\s]+", values["waves"]) if each]
    properties["maxUnavailable"] = values["max-unavailable"]
    properties["onFailure"] = values["on-failure"]
    if values["domain-label"]:
        properties["failureDomain"] = {"label": values["domain-label"], "maxUnavailable": values["domain-max"]}
    for name, key in (("canary", "canarySelector"), ("selector", "nodeSelector")):
        if labels := parse_labels(name, values[name], parsed.errors):
            properties[key] = labels
    if gates := _gates(values, parsed.errors):
        properties["gates"] = gates
    for name, key in (("downgrade", "allowDowngrade"), ("replace", "replaceActive")):
        if values[name] == "yes":
            properties[key] = True
    return parsed


def rejection_errors(error: ArmError) -> list[FieldError]:
    """Returns the errors of the API at their fields. Raises the error if it is not about the form."""
    if error.code in FIELDS_BY_CODE:
        return [FieldError(FIELDS_BY_CODE[error.code], error.message)]
    if error.status != 400:
        raise error
    return [_located(each.target, each.message) for each in problems_of(error)]


def _located(target: str, message: str) -> FieldError:
    path = target.removeprefix("properties.")
    for prefix, name in FIELDS_BY_PATH.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            below = path.removeprefix(prefix).lstrip(".")
            return FieldError(name, f"{below}: {message}" if name == "gates" and below else message)
    return FieldError("", f"{path}: {message}".removeprefix(": "))


def _gates(values: Mapping[str, str], errors: list[FieldError]) -> list[Any]:
    try:
        found = json.loads(values["gates"] or "[]")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        errors.append(FieldError("gates", "This is not a list in JSON. Correct it, or leave the field empty."))
        return []
    return [*found, *([APPROVAL] if values["approval"] == "yes" else [])]
