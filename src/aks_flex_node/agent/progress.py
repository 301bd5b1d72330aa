"""The interface through which long operations report progress. The base class discards all reports."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.artifacts.download import Transfer
    from aks_flex_node.errors import FlexError

    NoteProgress = Callable[[str], None]  # reports a detail of the current step


class ProgressReporter:
    """Receives progress of steps, notes and warnings; this base class discards them."""

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
