"""How the makers of tools and artifacts say what they are doing, without knowing who listens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Progress(Protocol):
    def working(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:
        """While it lasts, `doing` can be asked at any time, from any thread, how far the work is."""

    def done(self, what: str, how: str, seconds: float) -> None:
        """A piece of work came to its end."""


class Silence:
    """Nobody listens."""

    def working(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def done(self, what: str, how: str, seconds: float) -> None:
        pass


SILENCE: Progress = Silence()
