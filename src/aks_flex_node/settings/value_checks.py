"""Checks values against the table: type, bounds, pattern and rules. For the agent and the resource provider."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_node.api import value_rules as values
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import MASK
from aks_flex_node.settings.base import (
    HTTPS_URL_PATTERN,
    PATH_PATTERN,
    TIME_OF_DAY_PATTERN,
    VERSION_PATTERN,
    FieldType,
    model_fields,
    to_document,
)
from aks_flex_node.settings.models import Taint
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.table import describe_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from msgspec.structs import FieldInfo

    from aks_flex_node.settings.setting import Rule, Setting

    Steps = tuple[str | int, ...]

TEXT = FieldType.of(str)
MAX_TEXT = 4096  # characters of a value that is no certificate
SEVERAL_LINES = (values.certificate, values.certificate_and_key)
_TAINT = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?:(?P<effect>[^=:]+)")


@frozen
class Violation:
    """What is wrong with a value. `steps` lead to it from the setting, and `value` is empty if it may be a secret."""

    steps: Steps
    reason: str
    value: object = ""


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Returns the most similar known word, ignoring case."""
    import difflib  # noqa: PLC0415 - slow to import

    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), lower, 1)
    return lower[near[0]] if near else None


def same(one: object, other: object) -> bool:
    """Returns whether two values are the same JSON. For Python, `True` is 1 and 1 is 1.0, but not for the kubelet."""
    first, second = (json.dumps(each, sort_keys=True, default=str) for each in (one, other))
    return first == second


def convert(
    shape: FieldType, value: Any, coerce: Callable[[Any, Any], Any] | None = None
) -> tuple[Any, list[Violation]]:
    """Returns a value as its type, and what is wrong with it. `coerce` converts what people write to plain values."""
    conversion = _Conversion(coerce)
    return conversion.convert(shape, value, ()), conversion.found


class _Conversion:
    def __init__(self, coerce: Callable[[Any, Any], Any] | None) -> None:
        self.coerce = coerce
        self.found: list[Violation] = []

    def convert(self, shape: FieldType, value: Any, steps: Steps) -> Any:
        if shape.inner is object or (value is None and shape.optional):
            return value
        if shape.item is None:
            return self._taint(value, steps) if shape.inner is Taint else self._plain(shape, value, steps)
        if shape.origin is dict:
            return self._map(shape.item, value, steps)
        return self._list(shape, shape.item, value, steps)

    def _list(self, shape: FieldType, item: FieldType, value: Any, steps: Steps) -> Any:
        most = shape.metadata_value("max_length")
        if not isinstance(value, list | tuple | set):
            self.found.append(Violation(steps, "must be a list.", value))
            return value
        if most is not None and len(value) > most:
            self.found.append(Violation(steps, f"has {len(value)} items. The maximum is {most}."))
        return [self.convert(item, each, (*steps, index)) for index, each in enumerate(value)]

    def _map(self, item: FieldType, value: Any, steps: Steps) -> Any:
        if not isinstance(value, dict):
            self.found.append(Violation(steps, "must be a map of names to values.", value))
            return value
        converted = {}
        for name, each in value.items():
            inner = (*steps, str(name))
            converted[self._plain(TEXT, name, inner)] = self.convert(item, each, inner)
        return converted

    def _taint(self, value: Any, steps: Steps) -> Any:
        """Converts a taint, the only object in a list. People can write it as `key=value:Effect`."""
        if isinstance(value, str) and self.coerce:
            parts = _TAINT.fullmatch(value)
            if parts is None:
                self.found.append(Violation(steps, "is not a taint. Use `key=value:Effect` or `key:Effect`.", value))
                return value
            value = {name: text for name, text in parts.groupdict().items() if text is not None}
        if not isinstance(value, dict):
            self.found.append(Violation(steps, "must be a map.", value))
            return value
        known = _taint_fields()
        for name, (info, shape) in known.items():
            if name in value:
                self.convert(shape, value[name], (*steps, name))
            elif info.default is msgspec.NODEFAULT:
                self.found.append(Violation((*steps, name), "is missing."))
        for name in value:
            if name not in known:
                near = closest_match(str(name), known)
                reason = (
                    f"is not a known field. Did you mean {near}?" if near else f"is not one of {', '.join(known)}."
                )
                self.found.append(Violation((*steps, str(name)), reason))
        return value

    def _plain(self, shape: FieldType, value: Any, steps: Steps) -> Any:
        if shape.inner is Secret and isinstance(value, str) and value:
            return Secret(value)
        converted = self.coerce(shape.inner, value) if self.coerce else value
        if reason := _wrong(shape, converted):
            self.found.append(Violation(steps, reason, "" if shape.inner is Secret else value))
        elif shape.pattern == VERSION_PATTERN:
            return converted.removeprefix("v")
        return converted


@cache
def _taint_fields() -> dict[str, tuple[FieldInfo, FieldType]]:
    return {info.encode_name: (info, shape) for info, shape in model_fields(Taint)}


_TYPES = {
    int: "must be an integer.",
    float: "must be a number.",
    bool: "must be true or false.",
    str: "must be a string: put it in quotes.",
    Secret: "must be a non-empty string in quotes.",
}
_PATTERNS = {
    PATH_PATTERN: "must be an absolute path that starts with /.",
    VERSION_PATTERN: "is not a version like 1.36.3.",
    HTTPS_URL_PATTERN: "must be an https URL without a path, like https://api.example:443.",
    TIME_OF_DAY_PATTERN: "must be a time of day with two digits each, like 09:30.",
}


def _wrong(shape: FieldType, value: Any) -> str | None:
    """Returns what is wrong with a plain value, or None."""
    if shape.choices:
        return _not_a_choice(shape.choices, value)
    is_sound = _is_unicode(value) if type(value) is str else type(value) is not float or math.isfinite(value)
    if type(value) is not shape.inner or not is_sound:
        return _TYPES[shape.inner]
    if shape.pattern:
        return None if _compiled(shape.pattern).search(value) else _PATTERNS[shape.pattern]
    return _out_of_range(shape, value) if shape.inner in (int, float) else None


def _out_of_range(shape: FieldType, value: Any) -> str | None:
    try:
        msgspec.convert(value, shape.annotation)
    except msgspec.ValidationError:
        return f"is out of range. Allowed: {describe_type(shape)}."
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a JSON schema pattern with ECMAScript semantics: `$` matches only the end, and digits are ASCII."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern).replace(r"\d", "[0-9]"))


def _is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded. JSON can contain lone surrogates, which no file can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_a_choice(allowed: tuple[str, ...], value: object) -> str | None:
    if value in allowed:
        return None
    near = closest_match(value, allowed) if isinstance(value, str) else None
    return f"is not one of {', '.join(allowed)}." + (f" Did you mean {near}?" if near else "")


def violations(setting: Setting, value: object, *, sent: bool = False) -> list[Violation]:
    """Returns what the rules of a setting find in a value. Parts of another type are left to `convert`. `sent`: it is
    in a request to a provider.
    """
    own = (setting.api_rule if sent else None, setting.rule)
    if isinstance(value, Secret):
        return [Violation((), each.reason) for each in _of_text((), value.reveal(), _rules(_mask, *own))]
    if isinstance(value, dict):
        return _of_map(setting, value, own) if setting.name_rules else _in_json(value)
    if value == "" and sent:
        return [Violation((), "is empty. Omit it, or set a value.")]
    return _of_value((), value, _rules(*own))


def _of_map(setting: Setting, value: dict[str, object], own: tuple[Rule | None, ...]) -> list[Violation]:
    of_names, of_values = _rules(*setting.name_rules), _rules(*own)
    found = []
    for name, each in value.items():
        found += _of_text((name,), name, of_names)
        found += _of_value((name,), each, of_values)
    return found


def _of_value(steps: Steps, value: object, rules: tuple[Rule, ...]) -> list[Violation]:
    if isinstance(value, str):
        return _of_text(steps, value, rules)
    if isinstance(value, list | tuple):
        return [wrong for index, each in enumerate(value) for wrong in _of_value((*steps, index), each, rules)]
    if isinstance(value, dict | Taint):
        taint = value if isinstance(value, dict) else to_document(value)
        return [
            wrong
            for name, (_, shape) in _taint_fields().items()
            if shape.setting is not None and name in taint
            for wrong in _of_value((*steps, name), taint[name], _rules(shape.setting.rule))
        ]
    return []


@cache
def _rules(*own: Rule | None) -> tuple[Rule, ...]:
    """Returns all rules of a text. What is written to files is one line, unless a rule says more."""
    usual = () if any(rule in SEVERAL_LINES for rule in own) else (values.plain, _too_long)
    return (values.placeholder, *usual, *(rule for rule in own if rule is not None))


def _of_text(steps: Steps, text: str, rules: tuple[Rule, ...]) -> list[Violation]:
    """Returns the first rule that a text violates."""
    for rule in rules:
        if reason := rule(text):
            return [Violation(steps, reason, text if values.plain in rules else "")]
    return []


def _mask(text: str) -> str | None:
    wrong = f"is {MASK}, the mask of a hidden secret, or blank. Set the secret itself."
    return None if text.strip(" *") else wrong


def _too_long(text: str) -> str | None:
    return f"has {len(text)} characters. The maximum is {MAX_TEXT}." if len(text) > MAX_TEXT else None


def _in_json(value: dict[str, object]) -> list[Violation]:
    """Checks that a value can be written as JSON, which has no dates, no infinity and no cycles. Checks its texts."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return [Violation((), "contains a value that JSON does not support, such as a date. Put it in quotes.")]
    return list(_of_texts(value, ()))


def _of_texts(value: object, steps: Steps) -> Iterator[Violation]:
    if isinstance(value, str):
        yield from _of_text(steps, value, _rules())
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _of_text((*steps, str(name)), str(name), _rules())
            yield from _of_texts(each, (*steps, str(name)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _of_texts(each, (*steps, index))
