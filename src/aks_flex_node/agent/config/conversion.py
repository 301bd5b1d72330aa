"""Converts settings to models: parses strings as numbers and booleans where required, and checks types and bounds.
Reports all problems: invalid settings are removed and the rest is converted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from aks_flex_node.agent.config.problems import ConfigProblem, section_expected, violation_problem
from aks_flex_node.agent.config.sources import FALSE_WORDS, nest
from aks_flex_node.settings import value_checks
from aks_flex_node.settings.models import NodeConfig
from aks_flex_node.settings.table import ConfigSection, by_path, find_entry, keys

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(FALSE_WORDS, False),
}
_INTEGER = re.compile(r"\s*([-+]?\d+(?:_\d+)*)(\.0*)?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[-+]?(\d+(_\d+)*(\.(\d+(_\d+)*)?)?|\.\d+(_\d+)*)([eE][-+]?\d+)?\s*", re.ASCII)


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
            values[key.path], found = value_checks.convert(key.shape, settings[key.path], _coerce)
            wrong += [(key.path, [violation_problem(key.path, each) for each in found])] if found else []
            if isinstance(key.default, dict) and isinstance(values[key.path], dict):
                # For the kubelet, a map of thresholds replaces all of its defaults.
                values[key.path] = {**key.default, **values[key.path]}
        elif key.required and any(f"{path}.".startswith(f"{section}.") for path in settings):
            wrong.append((section, [ConfigProblem(key.path, "is missing.")]))
    return values, wrong


def _remove(settings: dict[str, Any], fault: str) -> None:
    section = fault.rpartition(".")[0]
    if settings.pop(fault, None) is not None and section:
        settings.setdefault(section, {})  # the section is set, although with an invalid value
    for path in [each for each in settings if each.startswith(f"{fault}.")]:
        del settings[path]


def _coerce(to: Any, value: Any) -> Any:
    """Converts a value to a type if it is unambiguous, else returns it unchanged."""
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
