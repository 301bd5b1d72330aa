"""The interface through which long operations report their progress. The base class ignores all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.errors import FlexError


class ProgressReporter:
    """Whoever wants to see how far it is; this one does not."""

    def step_started(self, name: str, title: str) -> None: ...

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None: ...

    def step_failed(self, name: str, error: FlexError) -> None: ...

    def note(self, text: str) -> None: ...
