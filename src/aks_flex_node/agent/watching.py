"""Whoever watches a join or a reset from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.errors import FlexError


class Watcher:
    """Whoever wants to see how far it is; this one does not."""

    def begins(self, name: str, title: str) -> None: ...

    def ends(self, name: str, changes: int | None, seconds: float) -> None: ...

    def fails(self, name: str, error: FlexError) -> None: ...

    def note(self, text: str) -> None: ...
