"""Text helpers for messages."""

from __future__ import annotations


def pluralize(count: int, noun: str) -> str:
    """Formats a count with its noun: `1 change`, `2 changes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Replaces control characters and line breaks, so that untrusted text is safe to print on a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
