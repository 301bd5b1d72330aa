"""The language inside of a template's strings: from text to a tree. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aks_flex_node.lab.arm.deployments.problems import TemplateError

TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\].,]))")


@dataclass(frozen=True)
class Literal:
    value: str | int


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Member:
    """A property, or an element of an array."""

    of: Expression
    key: Expression


Expression = Literal | Call | Member


def is_expression(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and not text.startswith("[[")


def parse(text: str) -> Expression:
    """Of a string in brackets; TemplateError names it when it is not in the language."""
    reader = Reader(text)
    found = reader.expression()
    if reader.kind:
        raise reader.unexpected()
    return found


class Reader:
    def __init__(self, text: str) -> None:
        self._whole, self._text, self._at = text, text[1:-1], 0
        self.kind, self._token = "", ""
        self._next()

    def expression(self) -> Expression:
        found = self._first()
        while self._token in {".", "["} and self.kind == "mark":
            if self._taken(".") is not None:
                found = Member(found, Literal(self._named()))
            else:
                self._take("[")
                found = Member(found, self.expression())
                self._take("]")
        return found

    def _first(self) -> Expression:
        kind, token = self.kind, self._token
        if kind == "text":
            self._next()
            return Literal(token[1:-1].replace("''", "'"))
        if kind == "number":
            self._next()
            return Literal(int(token))
        return Call(self._named(), self._arguments())

    def _arguments(self) -> tuple[Expression, ...]:
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
        found = TOKEN.match(self._text, self._at)
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
