"""Masks secrets in text that leaves this node or is shown: messages, reports to the provider, support bundles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"

_URL_LOGIN = re.compile(r"(?<=//)[^/@\s]*(?=@)")
_URL_QUERY = re.compile(r"\w://[^\s?]*\?([^\s\"']+)")  # the last group, where there is one, is what is secret
_BOOTSTRAP_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")
SECRET_PATTERNS = (
    _URL_LOGIN,
    _BOOTSTRAP_TOKEN,
    re.compile(r"(?<=://)[^/\s\"']+(?=@)"),  # a login in a URL whose password has an @ in it
    re.compile(r"(?i)\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # signed tokens (JWT)
    re.compile(r"(?i)(?<=bearer )\S+"),
    re.compile(r"(?<=sig=)[^&\s\"\\]+"),  # signatures of storage URLs; some write \u0026 for &
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(
        r"(?i)\b(?:client[-_]?secret|secret|password|client-key-data|accountkey)[\"']?\s*[:=]\s*[\"']?[^\s\"',;&]+"
    ),
)


def redact(text: str | None) -> str | None:
    """The text without the name and password of a URL, its query (where signatures are), and bootstrap tokens."""
    if text is None:
        return None
    for pattern in (_URL_LOGIN, _URL_QUERY, _BOOTSTRAP_TOKEN):
        text = _mask(text, (pattern,))
    return text


def redact_values(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets. Very short ones stay: to blank out every `a` would only spoil the text."""
    for secret in sorted((each for each in secrets if len(each) >= 4), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact_output(text: str, *, queries: bool = False) -> str:
    """Text of other programs, without anything that looks like a secret.

    Of a URL's query only a signature is masked, or all of it when `queries` says so.
    """
    patterns = (*SECRET_PATTERNS, _URL_QUERY) if queries else SECRET_PATTERNS
    while (masked := _mask(text, patterns)) != text:  # what is masked may leave a neighbour that is secret, too
        text = masked
    return text


def _mask(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    """Every pattern sees the text as it came: what one masks does not hide from another what else is secret."""
    spans = sorted(match.span(match.re.groups) for pattern in patterns for match in pattern.finditer(text))
    parts: list[str] = []
    end = 0
    for start, stop in spans:
        if start > end or not parts:  # else it touches or overlaps the one before
            parts += [text[end:start], MASK]
        end = max(end, stop)
    return "".join((*parts, text[end:]))
