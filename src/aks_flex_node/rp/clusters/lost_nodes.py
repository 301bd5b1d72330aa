"""Nodes that nobody will sign off: their resource was deleted, and their machine is gone.

A machine that is there takes itself apart and says so on its Node. Where it does not, its Node would stay for ever.
So the service deletes it after a grace, in which a machine that was only away can come back and do it properly.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.nodes import NODES, is_ours, ready_condition
from aks_flex_node.rp.clusters.tokens import moment
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.listener import Listener

GONE_AFTER = 3600.0  # seconds

log = logging.getLogger(__name__)


class LostNodes:
    def __init__(self, cluster: str, client: Client, listener: Listener, gone_after: float = GONE_AFTER) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._gone_after = gone_after
        self._not_ready: set[str] = set()

    def saw(self, node: Object) -> None:
        name = node["metadata"]["name"]
        if is_ours(node) and not_ready_since(node) is not None:
            self._not_ready.add(name)
        else:
            self._not_ready.discard(name)

    def gone(self, name: str) -> None:
        self._not_ready.discard(name)

    async def tidy(self) -> None:
        """From time to time, since no event tells that a grace is over."""
        await each(list(self._not_ready), self._look)

    async def _look(self, name: str) -> None:
        deleted = await self._listener.deleted(self._cluster, name)
        if deleted is None or time.time() - deleted < self._gone_after:
            return
        node = await self._client.find(f"{NODES}/{name}")
        if node is None or not is_ours(node) or not self._is_lost(node, deleted):
            return
        # Only as we saw it: one that becomes Ready just now stays.
        seen = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        if await self._client.delete(f"{NODES}/{name}", seen):
            log.info("%s: the Node %s was deleted: its resource and its machine are gone.", self._cluster, name)
            await self._listener.removed(self._cluster, name)

    def _is_lost(self, node: Object, deleted: float) -> bool:
        """Not for one that came after the deletion, which never was that resource's."""
        if moment(node["metadata"]["creationTimestamp"]).timestamp() > deleted:
            return False
        since = not_ready_since(node)
        return since is not None and time.time() - max(since, deleted) >= self._gone_after


def not_ready_since(node: Object) -> float | None:
    """None while it is Ready. One that never said a word has not been Ready from the beginning."""
    ready = ready_condition(node) or {}
    if ready.get("status") == "True":
        return None
    return moment(ready.get("lastTransitionTime") or node["metadata"]["creationTimestamp"]).timestamp()
