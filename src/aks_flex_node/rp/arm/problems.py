"""One thing that is wrong with a body: where, as a JSON path, and why, fit to be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic_core import ErrorDetails

_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_QUOTABLE = 80  # characters of a value that a message repeats


@dataclass(frozen=True)
class Problem:
    target: str
    message: str


def path(*steps: str | int) -> str:
    """`properties.nodeConfig.labels['example.com/a']`, `properties.nodeConfig.taints[0].key`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            quoted = step.replace("\\", "\\\\").replace("'", "\\'")
            text += f"['{quoted}']"
    return text


def quoted(value: object) -> str:
    text = str(value)
    return f"'{text[:_QUOTABLE]}…'" if len(text) > _QUOTABLE else f"'{text}'"


def broken(place: str, text: str, *rules: Callable[[str], str | None]) -> Iterator[Problem]:
    """The first rule that the text breaks: more of them would say the same in other words."""
    for rule in rules:
        if wrong := rule(text):
            yield Problem(place, f"{quoted(text)} {wrong}")
            return


def from_pydantic(error: ErrorDetails, *above: str) -> Problem:
    """In words that a person understands, and without the value, which may be a secret."""
    place = path(*above, *(step for step in error["loc"] if step != "[key]"))
    match error["type"]:
        case "extra_forbidden":
            return Problem(place, "This property is not known here. Correct its name, or leave it out.")
        case "missing":
            return Problem(place, "This property is needed and is missing.")
        case "string_pattern_mismatch":
            return Problem(place, f"The value does not match the pattern {error['ctx']['pattern']}.")
        case "literal_error":
            return Problem(place, f"The value must be one of {error['ctx']['expected']}.")
        case "model_type" | "dict_type" | "model_attributes_type":
            return Problem(place, "The value must be an object.")
        case _:
            words = error["msg"].removeprefix("Input ").rstrip(".")
            return Problem(place, f"The value {words}." if words.startswith("should") else f"{words}.")
