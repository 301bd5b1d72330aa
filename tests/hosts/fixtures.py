"""A host under test, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Stand:
    host: Host
    place: str  # an empty directory on it

    def at(self, name: str) -> str:
        return f"{self.place}/{name}"

    def twice(self, *actions: Action) -> None:
        """Every action may be done again, with the same result as once."""
        for action in actions:
            self.host.apply(action)
            self.host.apply(action)
