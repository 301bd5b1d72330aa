"""How whoever does long work says how far it is, without knowing who listens."""

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

    def step(self, text: str) -> AbstractContextManager[None]:
        """A piece of work that takes a moment."""

    def say(self, text: str) -> None:
        """A line."""


class Silence:
    """Nobody listens."""

    def working(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def done(self, what: str, how: str, seconds: float) -> None:
        pass

    def step(self, text: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def say(self, text: str) -> None:
        pass


SILENCE: Progress = Silence()
