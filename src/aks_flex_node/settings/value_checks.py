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
        if shape.item:
            of_type = self._list if shape.origin is tuple else self._map
            return of_type(shape, shape.item, value, steps)
        return self._taint(value, steps) if shape.inner is Taint else self._plain(shape, value, steps)

    def _list(self, shape: FieldType, item: FieldType, value: Any, steps: Steps) -> Any:
        most = shape.metadata_value("max_length")
        if not isinstance(value, list | tuple | set):
            self.found.append(Violation(steps, "must be a list.", value))
            return value
        if most is not None and len(value) > most:
            self.found.append(Violation(steps, f"has {len(value)} items. The maximum is {most}."))
        return [self.convert(item, each, (*steps, index)) for index, each in enumerate(value)]

    def _map(self, _: FieldType, item: FieldType, value: Any, steps: Steps) -> Any:
        if not isinstance(value, dict):
            self.found.append(Violation(steps, "must be a map of names to values.", value))
            return value
        inner = {name: (*steps, str(name)) for name in value}
        return {
            self.convert(TEXT, name, inner[name]): self.convert(item, each, inner[name])
            for name, each in value.items()
        }

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
        known = {info.encode_name: (info, shape) for info, shape in model_fields(Taint)}
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
    TIME_OF_DAY_PATTERN: "must be a time of day like 22:30.",
}


def _wrong(shape: FieldType, value: Any) -> str | None:
    """Returns what is wrong with a plain value, or None."""
    if shape.choices:
        return _not_a_choice(shape.choices, value)
    is_sound = not isinstance(value, str) or _is_unicode(value)
    if type(value) is not shape.inner or not is_sound or (shape.inner is float and not math.isfinite(value)):
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


def violations(setting: Setting, value: object, *, sent: bool = False) -> Iterator[Violation]:
    """Yields what the rules of a setting find in a value. Parts of another type are left to `convert`. `sent`: it is
    in a request to a provider.
    """
    rules = (setting.rule, setting.api_rule if sent else None)
    if isinstance(value, Secret):
        for each in _violation((), value.reveal(), (_mask, *rules)):
            yield Violation((), each.reason)
    elif value == "" and sent:
        yield Violation((), "is empty. Omit it, or set a value.")
    elif isinstance(value, str):
        yield from _violation((), value, rules)
    elif isinstance(value, dict):
        if not setting.name_rules:
            yield from _in_json(value)
            return
        for name, each in value.items():
            yield from _violation((name,), name, setting.name_rules)
            yield from _of_values([((name,), each)], rules)
    else:
        yield from _of_values([((), value)], rules)


def _of_values(found: Iterable[tuple[Steps, object]], rules: tuple[Rule | None, ...]) -> Iterator[Violation]:
    for steps, value in found:
        if isinstance(value, str):
            yield from _violation(steps, value, rules)
        elif isinstance(value, list | tuple):
            yield from _of_values([((*steps, index), each) for index, each in enumerate(value)], rules)
        elif isinstance(value, dict | Taint):
            taint = value if isinstance(value, dict) else to_document(value)
            for info, shape in model_fields(Taint):
                name = info.encode_name
                if shape.setting is not None and name in taint:
                    yield from _of_values([((*steps, name), taint[name])], (shape.setting.rule,))


def _violation(steps: Steps, text: str, rules: Iterable[Rule | None]) -> Iterator[Violation]:
    """Yields the first rule that a text violates. What is written to files is one line, unless a rule says more."""
    own = [rule for rule in rules if rule is not None]
    usual = () if any(rule in SEVERAL_LINES for rule in own) else (values.plain, _too_long)
    for rule in (values.placeholder, *usual, *own):
        if reason := rule(text):
            yield Violation(steps, reason, text if usual else "")
            return


def _mask(text: str) -> str | None:
    wrong = f"is {MASK}, the mask of a hidden secret, or blank. Set the secret itself."
    return None if text.strip(" *") else wrong


def _too_long(text: str) -> str | None:
    return f"has {len(text)} characters. The maximum is {MAX_TEXT}." if len(text) > MAX_TEXT else None


def _in_json(value: dict[str, object]) -> Iterator[Violation]:
    """Checks that a value can be written as JSON, which has no dates, no infinity and no cycles. Checks its texts."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        yield Violation((), "contains a value that JSON does not support, such as a date. Put it in quotes.")
    else:
        yield from _texts(value, ())


def _texts(value: object, steps: Steps) -> Iterator[Violation]:
    if isinstance(value, str):
        yield from _violation(steps, value, ())
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _violation((*steps, str(name)), str(name), ())
            yield from _texts(each, (*steps, str(name)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _texts(each, (*steps, index))
