"""Helping a person whose word was almost right."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """The nearest known word, else all of them."""
    words = list(known)
    if near := difflib.get_close_matches(word, words, 1):
        return f"Did you mean {near[0]}?"
    return f"There are: {', '.join(words)}." if words else "There is none yet."
