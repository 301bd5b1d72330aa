"""The progress that long-running work reports."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class ProgressReporter:
    """Receives the progress; this one discards it."""

    def task(self, what: str, doing: Callable[[], str]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Reports a long task. `doing` returns its current state and can be called at any time from any thread."""
        return nullcontext()

    def finished(self, what: str, how: str, seconds: float) -> None:
        """Reports a completed task."""

    def step(self, text: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Reports a short task."""
        return nullcontext()

    def message(self, text: str) -> None:
        """Prints a line."""


NO_PROGRESS = ProgressReporter()
