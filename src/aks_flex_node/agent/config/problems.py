"""One problem of a configuration as a message for the operator, and the translation of pydantic's errors into
problems.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.keys import ConfigKey, ConfigSection, all_entries, find_entry, nearest_above
from aks_flex_node.agent.config.models import Taint
from aks_flex_node.agent.config.secret import redact
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails


@dataclass(frozen=True)
class ConfigProblem:
    """`path` is the key, `reason` says what is wrong and what is allowed, `value` is fit to be shown."""

    path: str
    reason: str
    value: str = ""
    origin: str = ""

    def __str__(self) -> str:
        where = f"  [{self.origin}]" if self.origin else ""
        given = f"{self.value} " if self.value else ""
        return f"{self.path or 'configuration'}: {given}{self.reason}{where}"


class InvalidConfigError(ConfigError):
    """All that is wrong with a configuration, also one by one."""

    problems: tuple[ConfigProblem, ...] = ()


def invalid_config_error(problems: Sequence[ConfigProblem], source: str = "the configuration") -> InvalidConfigError:
    count = "is 1 problem" if len(problems) == 1 else f"are {len(problems)} problems"
    lines = "\n".join(f"  {problem}" for problem in problems)
    error = InvalidConfigError(
        "config-invalid",
        f"There {count} in {source}; nothing was changed:\n{lines}",
        "Correct what is listed, and check with `aks-flex-node config validate`.",
    )
    error.problems = tuple(problems)
    return error


def format_value(value: object, path: str = "") -> str:
    """The value as a message may quote it; nothing when it is, or may be, a secret, or is not one plain value."""
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
    return f"Known here: {', '.join(section.members)}."


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, whatever its case."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), lower, 1)
    return lower[near[0]] if near else None


def section_expected(section: ConfigSection, origin: str) -> ConfigProblem:
    return ConfigProblem(
        section.path, f"must be a section with keys below it: {', '.join(section.members)}.", origin=origin
    )


def dotted_path(location: Sequence[str | int]) -> str:
    """Pydantic's way to a value, as a person writes it: `node.taints[0].effect`."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location if each != "[key]")
    return text.lstrip(".")


def from_pydantic(error: ErrorDetails) -> ConfigProblem:
    path = dotted_path(error["loc"])
    reason = _reason(error, path)
    silent = error["type"] in ("missing", "extra_forbidden")  # there is no value, or nobody knows what it is
    return ConfigProblem(path, reason, "" if silent else format_value(error["input"], path))


_REASONS = (
    (r"missing", "is missing."),
    (r"int_.*", "must be a whole number."),
    (r"float_.*|finite_number", "must be a number."),
    (r"bool_.*", "must be true or false."),
    (r"string_type|string_unicode", "must be a text: put it in quotes."),
    (r"(list|tuple)_type", "must be a list."),
    (r"(dict|mapping)_type", "must be a map of names to values."),
    (r"model_.*", "must be a map."),
    (r"secret", "must be a text that is not empty, in quotes."),
)


def _reason(error: ErrorDetails, path: str) -> str:
    kind = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, kind):
            return reason
    if kind == "literal_error":
        return _choice(str(context["expected"]), error["input"])
    if kind == "string_pattern_mismatch":
        return (
            "must be an absolute path, from / on." if context["pattern"] == "^/" else "is not a version like 1.34.4."
        )
    if kind.startswith(("greater_than", "less_than")):
        return f"is out of range: {_range(path)} is allowed."
    if kind == "extra_forbidden":
        near = closest_match(
            str(error["loc"][-1]), Taint.model_fields
        )  # the only entries that have names of their own
        return (
            f"is not known here. Did you mean {near}?" if near else f"is not one of {', '.join(Taint.model_fields)}."
        )
    return f"{error['msg'].rstrip('.')}."


def _choice(expected: str, given: object) -> str:
    allowed = re.findall(r"'([^']*)'", expected)
    near = closest_match(given, allowed) if isinstance(given, str) else None
    return f"is not one of {', '.join(allowed)}." + (f" Did you mean {near}?" if near else "")


def _range(path: str) -> str:
    place, _ = find_entry(path)
    return f"a {place.type}" if isinstance(place, ConfigKey) else "less"
