"""The progress interface that long-running work reports to, and an implementation that discards it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class ProgressReporter(Protocol):
    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:
        """While it lasts, `doing` can be asked at any time, from any thread, how far the work is."""

    def finished(self, what: str, how: str, seconds: float) -> None:
        """A piece of work came to its end."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """A piece of work that takes a moment."""

    def message(self, text: str) -> None:
        """A line."""


class NoProgress:
    """Nobody listens."""

    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def finished(self, what: str, how: str, seconds: float) -> None:
        pass

    def step(self, text: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def message(self, text: str) -> None:
        pass


NO_PROGRESS: ProgressReporter = NoProgress()
