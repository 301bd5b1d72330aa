"""The interface through which long operations report to whoever started them. The base class ignores all of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.artifacts import Transfer
    from aks_flex_node.errors import FlexError


class ProgressReporter:
    """Reports nothing."""

    def step_started(self, name: str, title: str) -> None: ...

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None: ...

    def step_failed(self, name: str, error: FlexError) -> None: ...

    def note(self, text: str) -> None:
        """A detail of the step that runs."""

    def message(self, text: str) -> None:
        """What is about to happen, or what became of the whole operation."""

    def warning(self, text: str) -> None: ...

    def show_transfers(self, transfers: Callable[[], list[Transfer]]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Shows downloads as they proceed, while the context lasts."""
        return contextlib.nullcontext()
