"""The interface through which long operations report progress. The base class discards all reports."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.artifacts.download import Transfer

    NoteProgress = Callable[[str], None]  # reports a detail of the current step


class ProgressReporter:
    """Receives progress of steps, notes and warnings; this base class discards them."""

    @contextlib.contextmanager
    def step(self, name: str, title: str, changes: Sized | None = None, *, quiet: bool = False) -> Iterator[None]:
        """Reports the start, end and duration of a step, and how many changes it adds, if they are collected."""
        start, before = time.monotonic(), 0 if changes is None else len(changes)
        self.step_started(name, title)
        try:
            yield
        except FlexError as error:
            self.step_failed(name, error)
            raise
        if not quiet:
            count = None if changes is None else len(changes) - before
            self.step_finished(name, count, time.monotonic() - start)

    def step_started(self, name: str, title: str) -> None: ...

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None: ...

    def step_failed(self, name: str, error: FlexError) -> None: ...

    def note(self, text: str) -> None:
        """Reports a detail of the current step."""

    def message(self, text: str) -> None:
        """Reports what happens next, or the result of the whole operation."""

    def warning(self, text: str) -> None: ...

    def show_transfers(self, transfers: Callable[[], list[Transfer]]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Shows the progress of downloads inside the context."""
        return contextlib.nullcontext()
