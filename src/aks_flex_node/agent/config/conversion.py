"""Converts settings to models: parses strings as numbers and booleans where required, and checks types and bounds.
Reports all problems: invalid settings are removed and the rest is converted.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec
from msgspec.structs import fields

from aks_flex_node.agent.config.base_model import (
    HTTPS_URL_PATTERN,
    PATH_PATTERN,
    TIME_OF_DAY_PATTERN,
    VERSION_PATTERN,
    FieldType,
)
from aks_flex_node.agent.config.keys import ConfigKey, ConfigSection, by_path, find_entry, keys
from aks_flex_node.agent.config.models import NodeConfig, Taint
from aks_flex_node.agent.config.parser import ConfigDocument
from aks_flex_node.agent.config.problems import (
    ConfigProblem,
    closest_match,
    format_value,
    invalid_config_error,
    section_expected,
)
from aks_flex_node.agent.config.secret import Secret
from aks_flex_node.agent.config.sources import FALSE_WORDS, from_document, nest

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(FALSE_WORDS, False),
}
_INTEGER = re.compile(r"\s*([-+]?\d+(?:_\d+)*)(\.0*)?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[-+]?(\d+(_\d+)*(\.(\d+(_\d+)*)?)?|\.\d+(_\d+)*)([eE][-+]?\d+)?\s*", re.ASCII)
_TAINT = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?:(?P<effect>[^=:]+)")


def node_config(document: Mapping[str, Any]) -> NodeConfig:
    """Converts a document, spelled as in files. Raises ConfigError if a name or a type is invalid."""
    source = from_document(ConfigDocument(dict(document)), "the document")
    config, problems = convert_settings(source.settings)
    if problems or source.problems:
        raise invalid_config_error([*source.problems, *problems], "the document")
    return config


def convert_settings(settings: Mapping[str, Any]) -> tuple[NodeConfig, list[ConfigProblem]]:
    """Converts settings by dotted path. Returns the configuration and all problems."""
    problems = _check_names(settings)
    unknown = {problem.path for problem in problems}
    left = {path: value for path, value in settings.items() if path not in unknown}
    while True:
        values, wrong = _convert_all(left)
        if not wrong:
            return msgspec.convert(nest(values), NodeConfig), problems
        for path, found in wrong:
            problems += found
            _remove(left, path)


def _check_names(settings: Mapping[str, Any]) -> list[ConfigProblem]:
    """Returns problems for unknown paths and for sections that have a plain value."""
    problems = []
    for path, value in settings.items():
        if path in by_path():
            continue
        entry, rest = find_entry(path)
        if not isinstance(entry, ConfigSection) or rest:
            problems.append(ConfigProblem(path, "is not a setting."))
        elif value != {}:
            problems.append(section_expected(entry, ""))
    return problems


def _convert_all(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, list[ConfigProblem]]]]:
    """Returns the values by path, and the problems by the invalid setting or by the section that lacks one."""
    values = dict(settings)
    wrong: list[tuple[str, list[ConfigProblem]]] = []
    for key in keys():
        section = key.path.rpartition(".")[0]
        if key.path in settings:
            found: list[ConfigProblem] = []
            values[key.path] = _convert(key.annotation, settings[key.path], key.path, found)
            wrong += [(key.path, found)] if found else []
        elif key.required and any(f"{path}.".startswith(f"{section}.") for path in settings):
            wrong.append((section, [ConfigProblem(key.path, "is missing.")]))
    return values, wrong


def _remove(settings: dict[str, Any], fault: str) -> None:
    section = fault.rpartition(".")[0]
    if settings.pop(fault, None) is not None and section:
        settings.setdefault(section, {})  # the section is set, although with an invalid value
    for path in [each for each in settings if each.startswith(f"{fault}.")]:
        del settings[path]


def _convert(annotation: Any, value: Any, path: str, problems: list[ConfigProblem]) -> Any:
    shape = FieldType.of(annotation)
    if shape.inner is object or (value is None and shape.optional):
        return value
    if get_origin(shape.inner) is tuple:
        if not isinstance(value, list | tuple | set):
            problems.append(ConfigProblem(path, "must be a list.", format_value(value, path)))
            return value
        of = get_args(shape.inner)[0]
        return [_convert(of, each, f"{path}[{index}]", problems) for index, each in enumerate(value)]
    if get_origin(shape.inner) is dict:
        return _convert_map(get_args(shape.inner)[1], value, path, problems)
    if shape.inner is Taint:
        return _convert_taint(value, path, problems)
    converted = _coerce(shape.inner, value)
    if reason := _reason(shape, annotation, converted, path):
        problems.append(ConfigProblem(path, reason, format_value(value, path)))
    return (
        converted.removeprefix("v")
        if shape.metadata_value("pattern") == VERSION_PATTERN and not reason
        else converted
    )


def _convert_map(of: Any, value: Any, path: str, problems: list[ConfigProblem]) -> Any:
    if not isinstance(value, dict):
        problems.append(ConfigProblem(path, "must be a map of names to values.", format_value(value, path)))
        return value
    return {
        _convert(str, name, f"{path}.{name}", problems): _convert(of, each, f"{path}.{name}", problems)
        for name, each in value.items()
    }


def _convert_taint(value: Any, path: str, problems: list[ConfigProblem]) -> Any:
    """Converts a taint from a map of its fields or from `key=value:Effect`."""
    shown = format_value(value, path)
    if isinstance(value, str):
        parts = _TAINT.fullmatch(value)
        if parts is None:
            reason = "is not a taint. Use `key=value:Effect` or `key:Effect`."
            problems.append(ConfigProblem(path, reason, shown))
            return value
        value = {name: text for name, text in parts.groupdict().items() if text is not None}
    if not isinstance(value, dict):
        problems.append(ConfigProblem(path, "must be a map.", shown))
        return value
    known = {info.name: info for info in fields(Taint)}
    for name, info in known.items():
        if name in value:
            _convert(info.type, value[name], f"{path}.{name}", problems)
        elif info.default is msgspec.NODEFAULT:
            problems.append(ConfigProblem(f"{path}.{name}", "is missing."))
    problems += [_unknown_field(name, list(known), path) for name in value if name not in known]
    return value


def _unknown_field(name: object, known: list[str], path: str) -> ConfigProblem:
    near = closest_match(str(name), known)
    reason = f"is not a known field. Did you mean {near}?" if near else f"is not one of {', '.join(known)}."
    return ConfigProblem(f"{path}.{name}", reason)


def _coerce(to: Any, value: Any) -> Any:
    """Converts a value to a type if it is unambiguous, else returns it unchanged."""
    if to is Secret:
        return Secret(value) if isinstance(value, str) and value else value
    if to is bool:
        return _boolean(value)
    if to is int:
        return _integer(value)
    return _number(value) if to is float else value


def _boolean(value: Any) -> Any:
    if isinstance(value, str):
        return _BOOLEANS.get(value.lower(), value)
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else value


def _integer(value: Any) -> Any:
    if isinstance(value, str) and (digits := _INTEGER.fullmatch(value)):
        try:
            return int(digits[1])
        except ValueError:  # too many digits for Python
            return value
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53):
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):  # float() also accepts "nan" and non-ASCII digits
        return value
    try:
        return float(value) if isinstance(value, str | int) else value
    except OverflowError:
        return value


_TYPE_REASONS = {
    int: "must be an integer.",
    float: "must be a number.",
    bool: "must be true or false.",
    str: "must be a string: put it in quotes.",
    Secret: "must be a non-empty string in quotes.",
}
_PATTERN_REASONS = {
    PATH_PATTERN: "must be an absolute path that starts with /.",
    VERSION_PATTERN: "is not a version like 1.36.3.",
    HTTPS_URL_PATTERN: "must be an https URL without a path, like https://api.example:443.",
    TIME_OF_DAY_PATTERN: "must be a time of day like 22:30.",
}


def _reason(shape: FieldType, annotation: Any, value: Any, path: str) -> str | None:
    """Returns what is wrong with a plain value, or None."""
    if get_origin(shape.inner) is Literal:
        return _not_a_choice(get_args(shape.inner), value)
    pattern = shape.metadata_value("pattern")
    if type(value) is not shape.inner or (isinstance(value, str) and not _is_unicode(value)):
        return _TYPE_REASONS[shape.inner]
    if pattern:
        return None if _compile_pattern(pattern).search(value) else _PATTERN_REASONS[pattern]
    if isinstance(value, float) and not math.isfinite(value):
        return _TYPE_REASONS[float]
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return f"is out of range. Allowed: {_range(path)}."
    return None


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
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


def _range(path: str) -> str:
    entry, _ = find_entry(path)
    return entry.type if isinstance(entry, ConfigKey) else "smaller values"
