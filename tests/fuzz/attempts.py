"""Returns an expected exception as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def tried(work: Callable[[], T], refusal: type[E]) -> T | E:
    """Returns the result or the expected exception; any other exception is a finding and propagates."""
    try:
        return work()
    except refusal as refused:
        return refused
