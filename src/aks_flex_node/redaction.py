"""Masks secrets in text that is shown or leaves this node: messages, status reports, support bundles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"

_URL_LOGIN = re.compile(r"(?<=//)[^/@\s]*(?=@)")
# A login in a URL whose password contains an @.
_URL_LOGIN_WITH_AT = re.compile(r"(?<=://)[^/\s\"']+(?=@)")
_URL_QUERY = re.compile(r"\w://[^\s?]*\?([^\s\"']+)")  # the last group, if any, is the secret part
_BOOTSTRAP_TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")
SECRET_PATTERNS = (
    _URL_LOGIN,
    _BOOTSTRAP_TOKEN,
    _URL_LOGIN_WITH_AT,
    re.compile(r"(?i)\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # signed tokens (JWT)
    re.compile(r"(?i)(?<=bearer )\S+"),
    re.compile(r"(?i)(?<=authorization: basic )\S+"),
    re.compile(r"(?<=sig=)[^&\s\"\\]+"),  # signatures of storage URLs; some write \u0026 for &
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(
        r"(?i)\b(?:client[-_]?secret|secret|password|client-key-data|accountkey)[\"']?\s*[:=]\s*[\"']?[^\s\"',;&]+"
    ),
)


def redact(text: str | None) -> str | None:
    """Masks user names and passwords in URLs, URL queries (which contain signatures), and bootstrap tokens."""
    if text is None:
        return None
    for patterns in ((_URL_LOGIN, _URL_LOGIN_WITH_AT), (_URL_QUERY,), (_BOOTSTRAP_TOKEN,)):
        text = _mask(text, patterns)
    return text


def redact_values(text: str, secrets: Iterable[str]) -> str:
    """Masks the given secrets. Those shorter than four characters are skipped, because masking them would make the
    text unreadable."""
    for secret in sorted((each for each in secrets if len(each) >= 4), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact_output(text: str, *, queries: bool = False) -> str:
    """Masks everything that looks like a secret in the output of another program.

    Masks only signatures in URL queries, or whole queries if `queries` is true.
    """
    patterns = (*SECRET_PATTERNS, _URL_QUERY) if queries else SECRET_PATTERNS
    while (masked := _mask(text, patterns)) != text:  # masking one match may expose another one next to it
        text = masked
    return text


def _mask(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    """Masks all matches of the patterns; each pattern searches the original text, not text masked by another."""
    spans = sorted(match.span(match.re.groups) for pattern in patterns for match in pattern.finditer(text))
    parts: list[str] = []
    end = 0
    for start, stop in spans:
        if start > end or not parts:  # else it touches or overlaps the one before
            parts += [text[end:start], MASK]
        end = max(end, stop)
    return "".join((*parts, text[end:]))
