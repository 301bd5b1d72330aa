"""Secret values, which print as `***`, and redaction of texts that may contain credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MASK = "***"


class Secret:
    """Prints as three stars; only `reveal` gives it away, so every place that does can be found."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


_URL_USERINFO = re.compile(r"(?<=//)[^/@\s]*@")
_URL_QUERY = re.compile(r"(\w://[^\s?]*\?)[^\s\"']+")
_BOOTSTRAP_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")


def redact(text: str | None) -> str | None:
    """The text without the name and password of a URL, its query (where signatures are), and bootstrap tokens."""
    if text is None:
        return None
    return _BOOTSTRAP_TOKEN.sub(MASK, _URL_QUERY.sub(rf"\g<1>{MASK}", _URL_USERINFO.sub(f"{MASK}@", text)))


def redact_values(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets. Very short ones stay: to blank out every `a` would only spoil the text."""
    for secret in sorted((each for each in secrets if len(each) >= 4), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def printable(text: str) -> str:
    """The text without what would move a terminal's cursor or break a line in two."""
    return "".join(each if each.isprintable() else "?" for each in text)
