"""Form that starts a roll-out, by the table of its options: the body of the API that it means, and errors by field.
Pure.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from aks_flex_node.api import rollout_options
from aks_flex_node.api.node_changes import OptionError
from aks_flex_rp.dashboard.setting_fields import FieldError, ParsedForm, SettingField, locate_error, problems_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aks_flex_rp.arm.errors import ArmError

    Document = dict[str, Any]

APPROVAL = {"name": "approval", "timeoutSeconds": 604_800, "approval": {}}
NAME, APPROVES = "name", "approval"  # the fields that are no options
FIELDS = {
    row["path"]: SettingField(
        row["path"], row["form"], row["kind"], tuple(row.get("choices", ())), row["help"], row["default"]
    )
    for row in rollout_options.table()
}
GROUPS = {
    title: [FIELDS[row["path"]] for row in rollout_options.table() if row["group"] == title]
    for title in ("Waves", "Limits", "Checks")
}
DEFAULTS = {**{each.name: each.default for each in FIELDS.values()}, APPROVES: ""}
FIELDS_BY_CODE = {
    "RevisionBarred": "revision",
    "RevisionNotFound": "revision",
    "RolloutActive": "replaceActive",
    "RolloutExists": NAME,
    "InvalidResourceName": NAME,
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
    own = {name: form.get(name, "") for name in (NAME, APPROVES)}
    return {**{each.name: each.posted(form) for each in FIELDS.values()}, **own}


def parse_rollout_form(form: Mapping[str, str]) -> ParsedForm:
    """Parses a posted form to the body of the API. What the API checks is left to it."""
    parsed = ParsedForm({"properties": (properties := {})})
    for path, each in FIELDS.items():
        if text := each.posted(form).strip():
            properties[path] = _value(each, text, parsed.errors)
    if form.get(APPROVES) == "yes":
        properties["gates"] = [*properties.get("gates", ()), APPROVAL]
    return parsed


def _value(field: SettingField, text: str, errors: list[FieldError]) -> Any:
    try:
        match field.kind:
            case "waves":
                return re.split(r"[,\s]+", text)
            case "gates":
                return _gates(text)
            case "duration" | "domain":
                return rollout_options.CONVERSIONS[field.kind](field.name, text)
    except OptionError as error:
        errors.append(FieldError(field.name, f"“{text[:80]}” {error.reason}. {error.hint}"))
    return field.parse(text, errors)


def _gates(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list):
        return found
    raise OptionError("gates", text, "is not a list in JSON", "Correct it, or leave the field empty.")


def rejection_errors(error: ArmError) -> list[FieldError]:
    """Returns the errors of the API at their fields. Raises the error if it is not about the form."""
    if error.code in FIELDS_BY_CODE:
        return [FieldError(FIELDS_BY_CODE[error.code], error.message)]
    if error.status != 400:
        raise error
    return [locate_error(each, {}, tuple(FIELDS.values())) for each in problems_of(error)]
