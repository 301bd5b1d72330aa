"""The template language: parser of expressions, and the functions that need only their arguments.

A `ValueError` describes the error without the values, which may be secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.deployments.template_errors import TemplateError

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
            raise ValueError("the placeholders do not match the values")
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
        raise ValueError(f"a string is expected, not {type(value).__name__}")
    return value


def _union(first: Any, *others: Any) -> Any:
    """Merges objects recursively by keys, and arrays without duplicates."""
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


def _create_object(*arguments: Any) -> dict[str, Any]:
    if len(arguments) % 2:
        raise ValueError("a name has no value")
    return {_text(name): value for name, value in zip(arguments[::2], arguments[1::2], strict=True)}


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
    """Returns a string with Azure's length and alphabet. Its value differs: Azure's algorithm is not public."""
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


EXPRESSION_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\].,]))"
)


@dataclass(frozen=True)
class LiteralExpression:
    value: str | int


@dataclass(frozen=True)
class CallExpression:
    name: str
    arguments: tuple[TemplateExpression, ...]


@dataclass(frozen=True)
class MemberExpression:
    """Access to a property or an array element."""

    of: TemplateExpression
    key: TemplateExpression


TemplateExpression = LiteralExpression | CallExpression | MemberExpression


def is_expression(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and not text.startswith("[[")


def parse_expression(text: str) -> TemplateExpression:
    """Parses a string in brackets; raises TemplateError for invalid syntax."""
    reader = ExpressionParser(text)
    found = reader.expression()
    if reader.kind:
        raise reader.unexpected()
    return found


class ExpressionParser:
    def __init__(self, text: str) -> None:
        self._whole, self._text, self._at = text, text[1:-1], 0
        self.kind, self._token = "", ""
        self._next()

    def expression(self) -> TemplateExpression:
        found = self._first()
        while self._token in {".", "["} and self.kind == "mark":
            if self._taken(".") is not None:
                found = MemberExpression(found, LiteralExpression(self._named()))
            else:
                self._take("[")
                found = MemberExpression(found, self.expression())
                self._take("]")
        return found

    def _first(self) -> TemplateExpression:
        kind, token = self.kind, self._token
        if kind == "text":
            self._next()
            return LiteralExpression(token[1:-1].replace("''", "'"))
        if kind == "number":
            self._next()
            return LiteralExpression(int(token))
        return CallExpression(self._named(), self._arguments())

    def _arguments(self) -> tuple[TemplateExpression, ...]:
        self._take("(")
        if self._taken(")") is not None:
            return ()
        found = [self.expression()]
        while self._taken(",") is not None:
            found.append(self.expression())
        self._take(")")
        return tuple(found)

    def _named(self) -> str:
        if self.kind != "name":
            raise self.unexpected()
        name = self._token
        self._next()
        return name

    def _taken(self, mark: str) -> str | None:
        if self.kind != "mark" or self._token != mark:
            return None
        self._next()
        return mark

    def _take(self, mark: str) -> None:
        if self._taken(mark) is None:
            raise self.unexpected()

    def _next(self) -> None:
        found = EXPRESSION_TOKEN.match(self._text, self._at)
        if found:
            self._at, self.kind = found.end(), found.lastgroup or ""
            self._token = found[self.kind]
        elif self._text[self._at :].strip():
            raise TemplateError(f"The template language expression '{self._whole}' is not valid at '{self._rest}'.")
        else:
            self.kind, self._token = "", ""

    @property
    def _rest(self) -> str:
        return self._text[self._at :].strip()

    def unexpected(self) -> TemplateError:
        what = f"'{self._token}' is not expected there" if self.kind else "it ends too early"
        return TemplateError(f"The template language expression '{self._whole}' is not valid: {what}.")
