"""The node takes its leave of the cluster, as far as its own certificate may."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.api import Refused
from aks_flex_node.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.api import Api

LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Farewell:
    api: Api
    node: str
    seconds: float = 30.0  # for pods to go
    patience: float = 0.0  # seconds for a resource provider to take the Node away, where there is one

    def say(self, note: Callable[[str], None]) -> list[str]:
        """Drain, say that we leave, take the Node away; what is left for a person to type."""
        by_hand = [f"kubectl delete node {self.node}"]
        try:
            node = nodes.find(self.api, self.node)
            if node is None:
                missing = nodes.is_missing(self.api, self.node)
                note(
                    f"the cluster has no node {self.node}"
                    if missing
                    else f"this machine may not see node {self.node}"
                )
                return [] if missing else by_hand
            nodes.cordon(self.api, self.node)
            if stayed := nodes.move_pods(self.api, self.node, self.seconds, note):
                note(f"these pods did not go within {self.seconds:.0f} s: {', '.join(stayed)}")
            nodes.say_left(self.api, self.node)
            if nodes.delete(self.api, self.node):
                note(f"node {self.node} is out of the cluster")
                return []
            if self._is_taken_away():
                note(f"the resource provider took node {self.node} out of the cluster")
                return []
            note(f"a node's own certificate may not delete node {self.node}; it is cordoned and marked as left")
        except (ClusterError, Refused) as error:
            note(f"the cluster was not told: {error}")
        return by_hand

    def _is_taken_away(self) -> bool:
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            if nodes.is_missing(self.api, self.node):
                return True
            time.sleep(LOOK_SECONDS)
        return False
