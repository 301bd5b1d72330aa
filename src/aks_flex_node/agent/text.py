"""Text helpers for messages."""

from __future__ import annotations


def pluralize(count: int, noun: str) -> str:
    """`1 change`, `2 changes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """The text without what would move a terminal's cursor or break a line in two."""
    return "".join(each if each.isprintable() else "?" for each in text)
