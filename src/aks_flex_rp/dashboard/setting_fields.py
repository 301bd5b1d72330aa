"""Settings as fields of a form, and fields as settings, by the table of settings. Pure.

A setting with a label in the table has a field of its own. The others are edited as JSON in one more field, so that
none is lost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from aks_flex_node.settings.api import AUTH_METHODS, POOL_NAME, ApiSetting, api_settings, settings_data, value_kind
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.setting import CONTRIBUTOR, DISTURBS, NOTHING, OWNER, Setting
from aks_flex_node.settings.table import describe_type
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.dashboard import document_diff
from aks_flex_rp.resource import validation
from aks_flex_rp.resource.view import format_taint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aks_flex_rp.arm.errors import ArmError
    from aks_flex_rp.dashboard.document_diff import Path

Document = dict[str, Any]
EMPTY: dict[str, Any] = {"list": [], "taints": [], "map": {}, "lists": {}, "json": {}}
REST = "rest"
YES, NO = "yes", "no"
JSON = {"json", "lists", "gates"}  # kinds of settings that are edited as JSON
METHOD = ("azureAuth", "method")
NOT_IN_TEMPLATE = (
    "A template contains no secrets: all nodes of the pool would have the same one. Remove clientSecret."
)
ALLOW_DOWNGRADE = "To downgrade, select “Allow downgrade” below."
DESCRIPTION = ApiSetting(
    "description",
    FieldType.of(str),
    Setting("At most 256 characters. The list of pools shows it.", CONTRIBUTOR, NOTHING, form="Description"),
)
# The groups of a form, each with what the paths of its settings begin with. The longest one that fits decides.
GROUPS = {
    "Pool": (POOL_NAME, DESCRIPTION.path),
    "Identity": ("azureAuth", "kubernetesAuth"),
    "Labels and taints": ("nodeConfig.labels", "nodeConfig.taints"),
    "Versions": ("versions",),
    "Management": ("continuousMonitoring", ""),
    "Maintenance window": ("nodeConfig.updatePolicy.maintenanceWindow",),
}


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


@dataclass(frozen=True)
class SettingField:
    """The field of a setting."""

    path: str
    label: str
    kind: str  # as in settings_data
    choices: tuple[str, ...]  # of a text, of the items of a list, or of a flag that a node can have from its pool
    hint: str
    default: Any = field(default=None, hash=False)

    @property
    def name(self) -> str:
        return self.path.replace(".", "-")

    @property
    def steps(self) -> Path:
        return tuple(self.path.split("."))

    @property
    def empty(self) -> Any:
        """The value of the field if it is not set."""
        return bool(self.default) if self.kind == "flag" and not self.choices else EMPTY.get(self.kind)

    def text(self, value: Any) -> str:
        """Returns what the field shows for a value, None if it is not set. Never a secret."""
        if self.kind == "flag":
            shown = self.default if value is None and not self.choices else value
            return {True: YES, None: ""}.get(shown, NO if self.choices else "")
        if value is None or self.kind == "secret":
            return ""
        if self.kind == "map":
            return "\n".join(f"{name}={text}" for name, text in sorted(value.items()))
        if self.kind == "taints":
            return "\n".join(map(format_taint, value))
        if self.kind in {"json", "lists"}:
            return json.dumps(value, indent=2, ensure_ascii=False)
        return "\n".join(value) if self.kind == "list" else str(value)

    def posted(self, form: Mapping[str, str]) -> str:
        """Returns the text of the field in a posted form. A list of choices is posted as one check box each."""
        checked = (each for each in self.choices if form.get(f"{self.name}-{each}") == "yes")
        return form.get(self.name, "").replace("\r\n", "\n") or "\n".join(checked)

    def parse(self, text: str, errors: list[FieldError]) -> Any:
        """Returns the value of a posted text. Values are checked by the API."""
        if self.kind in PARSERS:
            return PARSERS[self.kind](self.name, text, errors)
        if self.kind in {"flag", "switch"}:
            return text == YES if text or not self.choices else None
        return _lines(text) if self.kind == "list" else text.strip() or None

    def covers(self, path: str) -> bool:
        return path == self.path or path.startswith((f"{self.path}.", f"{self.path}["))


@dataclass(frozen=True)
class FormSheet:
    """Values, errors and conflicts of a form to render."""

    values: Mapping[str, str]
    errors: tuple[FieldError, ...] = ()
    conflicts: tuple[Any, ...] | None = None  # None when the settings were not changed meanwhile
    secret_lost: bool = False  # a secret was posted, and is not rendered again
    downgrade: bool = False  # the user allowed a downgrade

    def at(self, name: str) -> list[str]:
        return [each.message for each in self.errors if each.field == name]

    @property
    def asks_downgrade(self) -> bool:
        return self.downgrade or any(each.message.endswith(ALLOW_DOWNGRADE) for each in self.errors)


def setting_field(entry: ApiSetting, *, of_pool: bool = False) -> SettingField:
    shape, setting = entry.shape, entry.setting
    kind, choices = value_kind(shape.inner)
    if kind == "flag" and not (of_pool or setting.per_node):
        choices = [YES, NO]
    hint = setting.help
    if kind == "number":
        hint += f" {describe_type(shape).capitalize()}."
    if setting.disturbs != "nothing":
        hint += f" A change disturbs {DISTURBS[setting.disturbs]}."
    if setting.who == OWNER or setting.owner_value:
        hint += f" Only owners of the cluster can set {f'`{setting.owner_value}`' if setting.owner_value else 'it'}."
    default = entry.default
    return SettingField(entry.path, setting.form, kind, tuple(choices), hint, default)


@cache
def setting_fields(*, of_pool: bool = False) -> tuple[SettingField, ...]:
    """Returns the fields of a node, or of a pool: those of its template, and its description."""
    entries = [*api_settings().values(), *([DESCRIPTION] if of_pool else [])]
    found = [each for each in entries if each.setting.form and not (of_pool and each.setting.per_node)]
    found.sort(key=lambda each: not each.required)
    return tuple(setting_field(each, of_pool=of_pool) for each in found)


def group_fields(fields: Iterable[SettingField]) -> dict[str, list[SettingField]]:
    """Returns the fields by the title of their group."""
    groups: dict[str, list[SettingField]] = {title: [] for title in GROUPS}
    titles = {prefix: title for title, prefixes in GROUPS.items() for prefix in prefixes}
    for prefix in sorted(titles, key=len, reverse=True):
        placed = {each for group in groups.values() for each in group}
        groups[titles[prefix]] += [each for each in fields if each not in placed and each.path.startswith(prefix)]
    return groups


@cache
def secret_paths() -> tuple[Path, ...]:
    return tuple(tuple(each["path"].split(".")) for each in settings_data() if each["kind"] == "secret")


def form_values(properties: Document, fields: Iterable[SettingField]) -> dict[str, str]:
    """Returns the texts of all fields for these properties."""
    own = {each: document_diff.value_at(properties, each.steps) for each in fields}
    rest = document_diff.apply_values(properties, {each.steps: None for each in own})
    texts = {each.name: each.text(value) for each, value in own.items()}
    return {**texts, REST: json.dumps(rest, indent=2, ensure_ascii=False)}


def posted_values(form: Mapping[str, str], fields: Iterable[SettingField]) -> dict[str, str]:
    """Returns the fields of a posted form to show again, unchanged but without secrets."""
    names = "|".join(path[-1] for path in secret_paths())
    rest = re.sub(rf'("({names})"\s*:\s*)"(?:[^"\\]|\\.)*"?', r'\1""', form.get(REST, ""))
    texts = {each.name: "" if each.kind == "secret" else each.posted(form) for each in fields}
    return {**texts, REST: rest}


def parse_form(form: Mapping[str, str], before: Document, fields: Sequence[SettingField]) -> ParsedForm:
    """Parses a posted form. Omits default values, unless `before` sets them explicitly, and the settings of other
    identities than the chosen one.
    """
    errors: list[FieldError] = []
    values: dict[Path, object] = {}
    for each in fields:
        value = each.parse(each.posted(form), errors)
        is_set = value != each.empty or document_diff.value_at(before, each.steps) == value
        values[each.steps] = value if is_set else None
    if chosen := values.get(METHOD):
        values |= {(METHOD[0], method): None for method in AUTH_METHODS if method != chosen}
    rest = _parse_json(REST, form.get(REST, ""), errors)
    errors += [
        FieldError(REST, f"Set {each.path} in its field above.")
        for each in fields
        if document_diff.value_at(rest, each.steps) is not None
    ]
    if any(document_diff.value_at(rest, path) is not None and path not in values for path in secret_paths()):
        errors.append(FieldError(REST, NOT_IN_TEMPLATE))
    return ParsedForm(document_diff.apply_values(rest, values), errors)


def problems_of(error: ArmError) -> list[Problem]:
    """Returns the problems that a response of the API names."""
    return [Problem(each.target, each.message) for each in error.details or (error,)]


def locate_error(problem: Problem, values: Mapping[str, str], fields: Sequence[SettingField]) -> FieldError:
    """Maps a problem of the API to its field. `values` are the posted texts."""
    target, message = re.sub(r"^properties\.(template(\.|$))?", "", problem.target), problem.message
    if target.startswith("versions.") and "allowDowngrade" in message:
        message = f"{message.partition('. ')[0].removesuffix('.')}. {ALLOW_DOWNGRADE}"  # the API names its own option
    if message.startswith("This property is needed"):
        message = "This field is required."
    inside = (each for each in fields if target.startswith(METHOD[0]) and each.path.startswith(f"{target}."))
    at = next((each for each in fields if each.covers(target)), next(inside, None))
    if at:
        below, lines = target.removeprefix(at.path), _lines(values.get(at.name, ""))
        item = re.match(r"\[(\d+)\]", below)
        which = f"{lines[int(item[1])]}: " if item and int(item[1]) < len(lines) else ""
        if at.kind in JSON:
            which = f"{below.lstrip('.')}: ".removeprefix(": ")
        return FieldError(at.name, which + message)
    is_setting = target and problem.target.startswith("properties.")
    return FieldError(REST if is_setting else "", f"{target}: {message}".removeprefix(": "))


def parse_number(name: str, text: str, errors: list[FieldError]) -> int | None:
    """Parses the number of a field; None if it is empty or invalid."""
    if not text:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text):
        return int(text)
    errors.append(FieldError(name, "Enter a whole number."))
    return None


def parse_labels(name: str, text: str, errors: list[FieldError]) -> dict[str, str]:
    """Parses the labels of a field, one in each line."""
    labels: dict[str, str] = {}
    for line in _lines(text):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key:
            errors.append(FieldError(name, f"“{line[:80]}” is not a label. Use KEY=VALUE."))
        elif key in labels:
            errors.append(FieldError(name, f"The key “{key[:80]}” is duplicated."))
        else:
            labels[key] = value
    return labels


def _taints(name: str, text: str, errors: list[FieldError]) -> list[dict[str, str]]:
    taints = []
    for line in _lines(text):
        first, colon, effect = (part.strip() for part in line.rpartition(":"))
        key, equals, value = (part.strip() for part in first.partition("="))
        if colon and key:
            taints.append({"key": key, **({"value": value} if equals else {}), "effect": effect})
        else:
            errors.append(FieldError(name, f"“{line[:80]}” is not a taint. Use KEY=VALUE:EFFECT or KEY:EFFECT."))
    return taints


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _parse_json(name: str, text: str, errors: list[FieldError]) -> Document:
    parsed = validation.parse_body(text.encode("utf-8", "replace") if text.strip() else b"{}")
    if not isinstance(parsed, Problem):
        return parsed
    errors.append(FieldError(name, parsed.message.replace("The request body", "This")))
    return {}


PARSERS: dict[str, Callable[[str, str, list[FieldError]], Any]] = {
    "number": parse_number,
    "map": parse_labels,
    "taints": _taints,
    "json": _parse_json,
    "lists": _parse_json,
}
