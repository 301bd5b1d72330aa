"""The progress interface that long-running work reports to, and an implementation that discards it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class ProgressReporter(Protocol):
    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:
        """Reports a long task. `doing` returns its current state and can be called at any time from any thread."""

    def finished(self, what: str, how: str, seconds: float) -> None:
        """Reports a completed task."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Reports a short task."""

    def message(self, text: str) -> None:
        """Prints a line."""


class NoProgress:
    """Discards all progress."""

    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def finished(self, what: str, how: str, seconds: float) -> None:
        pass

    def step(self, text: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def message(self, text: str) -> None:
        pass


NO_PROGRESS: ProgressReporter = NoProgress()
