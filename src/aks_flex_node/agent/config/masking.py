"""What of a text may be shown to people: everything but what looks like a credential."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.secret import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIGN_IN = re.compile(r"(?<=//)[^/@\s]*@")
_QUERY = re.compile(r"(\w://[^\s?]*\?)[^\s\"']+")
_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")


def public(text: str | None) -> str | None:
    """The text without the name and password of a URL, its query (where signatures are), and bootstrap tokens."""
    if text is None:
        return None
    return _TOKEN.sub(MASK, _QUERY.sub(rf"\g<1>{MASK}", _SIGN_IN.sub(f"{MASK}@", text)))


def without(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets. Very short ones stay: to blank out every `a` would only spoil the text."""
    for secret in sorted((each for each in secrets if len(each) >= 4), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def printable(text: str) -> str:
    """The text without what would move a terminal's cursor or break a line in two."""
    return "".join(each if each.isprintable() else "?" for each in text)
