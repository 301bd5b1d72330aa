"""One problem of a configuration as a message, and the error that lists all problems."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import redact
from aks_flex_node.settings.table import ConfigSection, all_entries, nearest_above
from aks_flex_node.settings.value_checks import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.settings.value_checks import Violation


@frozen
class ConfigProblem:
    """One problem: `path` is the key, `reason` says what is wrong and what is allowed, `value` is safe to print."""

    path: str
    reason: str
    value: str = ""
    origin: str = ""

    def __str__(self) -> str:
        where = f"  [{self.origin}]" if self.origin else ""
        value = f"{self.value} " if self.value else ""
        return f"{self.path or 'configuration'}: {value}{self.reason}{where}"


class InvalidConfigError(ConfigError):
    """All problems of a configuration. `problems` has them one by one."""

    problems: tuple[ConfigProblem, ...] = ()


def invalid_config_error(problems: Sequence[ConfigProblem], source: str = "the configuration") -> InvalidConfigError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "\n".join(f"  {problem}" for problem in problems)
    error = InvalidConfigError(
        "config-invalid",
        f"The configuration is invalid: {count} in {source}. Nothing was changed.\n{lines}",
        "Correct the listed settings, then run the same command again.",
    )
    error.problems = tuple(problems)
    return error


def violation_problem(path: str, violation: Violation) -> ConfigProblem:
    """Returns what is wrong with a setting, or with a value in its list or map."""
    for step in violation.steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return ConfigProblem(path, violation.reason, format_value(violation.value, path) if violation.value != "" else "")


def format_value(value: object, path: str = "") -> str:
    """Formats a value for a message. Returns an empty string for possible secrets and for lists and maps."""
    key = nearest_above(path)
    if path and (key is None or key.is_sensitive):
        return ""
    if isinstance(value, str):
        text = redact(value) or ""
        return json.dumps(text if len(text) <= 60 else text[:57] + "…", ensure_ascii=False)
    return json.dumps(value) if isinstance(value, bool | int | float) else ""


def unknown_key(section: ConfigSection, name: str, origin: str) -> ConfigProblem:
    path = f"{section.path}.{name}".lstrip(".")
    return ConfigProblem(redact(path) or "", f"is not a setting. {_nearest(section, name)}", origin=origin)


def _nearest(section: ConfigSection, name: str) -> str:
    if near := closest_match(name, section.spellings):
        path = f"{section.path}.{section.spellings[near]}".lstrip(".")
        return f"Did you mean {path}?"
    elsewhere = [each.path for each in all_entries() if each.path.rpartition(".")[2].lower() == name.lower()]
    if elsewhere:
        return f"Did you mean {' or '.join(elsewhere[:2])}?"
    return f"Known settings: {', '.join(section.members)}."


def section_expected(section: ConfigSection, origin: str) -> ConfigProblem:
    names = ", ".join(section.members or section.pool_names)
    return ConfigProblem(section.path, f"must be a section with these keys: {names}.", origin=origin)
