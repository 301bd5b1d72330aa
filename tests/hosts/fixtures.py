"""A host under test and its helper methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Stand:
    host: Host
    place: str  # an empty directory on the host

    def at(self, name: str) -> str:
        return f"{self.place}/{name}"

    def twice(self, *actions: Action) -> None:
        """Applies each action twice: every action is idempotent."""
        for action in actions:
            self.host.apply(action)
            self.host.apply(action)
