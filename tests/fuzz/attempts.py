"""Doing what may be refused, with the refusal as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def tried(work: Callable[[], T], refusal: type[E]) -> T | E:
    """What came of it, or the refusal; any other error is a finding, and goes on its way."""
    try:
        return work()
    except refusal as refused:
        return refused
