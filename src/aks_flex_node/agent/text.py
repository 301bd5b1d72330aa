"""Text helpers for messages."""

from __future__ import annotations


def pluralize(count: int, noun: str) -> str:
    """`1 change`, `2 changes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
