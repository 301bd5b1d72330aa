"""Functions of the template language that need nothing but their arguments. Pure.

A `ValueError` says what is wrong, without the values: they may be secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PLACEHOLDER = re.compile(r"\{(\d+)(?::D(\d+))?\}|(\{\{|\}\})|([{}])")


def _concat(*parts: Any) -> Any:
    if parts and all(isinstance(each, list) for each in parts):
        return [element for each in parts for element in each]
    return "".join(_string(each) for each in parts)


def _format(pattern: Any, *values: Any) -> str:
    def filled(found: re.Match[str]) -> str:
        if found[3]:
            return found[3][0]
        if found[4] or int(found[1]) >= len(values):
            raise ValueError("the placeholders do not fit the values")
        value = values[int(found[1])]
        return f"{value:0{found[2]}d}" if found[2] else _string(value)

    return PLACEHOLDER.sub(filled, _text(pattern))


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a string is expected, and no {type(value).__name__}")
    return value


def _union(first: Any, *others: Any) -> Any:
    """Objects by their keys, those inside of them as well; arrays without what is there already."""
    merged = first
    for each in others:
        if isinstance(merged, dict) and isinstance(each, dict):
            both = {
                key: _union(merged[key], value) for key, value in each.items() if _mergeable(merged.get(key), value)
            }
            merged = {**merged, **each, **both}
        elif isinstance(merged, list) and isinstance(each, list):
            merged = [*merged, *(one for one in each if one not in merged)]
        else:
            raise ValueError("all arguments must be arrays, or all objects")
    return merged


def _mergeable(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _create_object(*words: Any) -> dict[str, Any]:
    if len(words) % 2:
        raise ValueError("a name has no value")
    return {_text(name): value for name, value in zip(words[::2], words[1::2], strict=True)}


def _try_get(of: Any, key: Any) -> Any:
    return next((value for name, value in of.items() if name.lower() == _text(key).lower()), None)


def _contains(where: Any, what: Any) -> bool:
    if isinstance(where, dict):
        return _text(what).lower() in {key.lower() for key in where}
    return what in where


def _int(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("it is not a number") from None


def _json(text: Any) -> Any:
    try:
        return json.loads(_text(text))
    except ValueError:
        raise ValueError("it is not JSON") from None


def _take(of: Any, count: Any) -> Any:
    return of[: max(count, 0)]


def _pad_left(value: Any, width: Any, pad: Any = " ") -> str:
    return _string(value).rjust(width, pad)


def _unique_string(*parts: Any) -> str:
    """As long as Azure's and made of the same letters, and another one: how Azure makes it is its own matter."""
    digest = hashlib.sha256("\0".join(_text(each) for each in parts).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:13]


def _empty(value: Any) -> bool:
    return value is None or len(value) == 0


def _equals(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda one, other: one + other,
    "and": lambda *all_: all(all_),
    "coalesce": lambda *values: next((each for each in values if each is not None), None),
    "concat": _concat,
    "contains": _contains,
    "createarray": lambda *elements: [*elements],
    "createobject": _create_object,
    "empty": _empty,
    "equals": _equals,
    "false": lambda: False,
    "format": _format,
    "int": _int,
    "json": _json,
    "length": len,
    "not": lambda value: not value,
    "null": lambda: None,
    "or": lambda *all_: any(all_),
    "padleft": _pad_left,
    "string": _string,
    "take": _take,
    "tolower": lambda text: _text(text).lower(),
    "tryget": _try_get,
    "true": lambda: True,
    "union": _union,
    "uniquestring": _unique_string,
}
