"""Keeps what nodes' identities may do in a cluster as the store has it, whatever was missed or done by hand.

What is to be given is given when a node asks, and taken when it is deleted. This is for the rest: a cluster that was
away at that moment, a service that ended in between, somebody with kubectl.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters import access
from aks_flex_node.rp.clusters.lost_nodes import GONE_AFTER
from aks_flex_node.rp.clusters.nodes import NODES, is_ours
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.access import Access
    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.listener import Listener

# What is given is noted only after it is given. A difference that is younger than that takes is none.
SETTLE_SECONDS = 15.0

log = logging.getLogger(__name__)


class KeepingAccess:
    """Of one cluster. It is told of bindings by the watch, and of nodes by the store."""

    def __init__(
        self,
        cluster: str,
        client: Client,
        listener: Listener,
        settle: float = SETTLE_SECONDS,
        gone_after: float = GONE_AFTER,
    ) -> None:
        self._gone_after = gone_after
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._settle = settle
        self._there: dict[str, Access | None] = {}  # by node; None where a binding is not as we make them
        self._due: dict[str, float] = {}  # by node, since when

    async def listed(self, items: list[Object]) -> None:
        self._there = {name: access.read(item) for item in items if (name := access.node_of(item))}
        wanted = await self._listener.accesses(self._cluster)
        for name in {*self._there, *wanted}:
            if self._there.get(name) != wanted.get(name) or name not in wanted:
                self.look_at(name)

    async def changed(self, kind: str, item: Object) -> None:
        name = access.node_of(item)
        if kind == "DELETED":
            self._there.pop(name, None)
        elif name:
            self._there[name] = access.read(item)
        if name:
            self._due[name] = time.monotonic()  # somebody is at it just now

    def look_at(self, name: str) -> None:
        """What is wanted of this node may have changed; with no name, of any."""
        for one in [name] if name else self._there:
            self._due.setdefault(one, time.monotonic())

    async def tidy(self) -> None:
        """From time to time: what has been different for long enough is put right; what fails is due again."""
        await each(list(self._due), self._look)

    async def _look(self, name: str) -> None:
        since = self._due[name]
        if time.monotonic() - since < self._settle:
            return
        wanted = await self._listener.access(self._cluster, name)
        if wanted is None and name in self._there:
            if await self._takes_leave(name):
                self._due[name] = time.monotonic()  # it is looked at again
                return
            if await access.withdraw(self._client, name):
                log.info("%s: what the identity of %s may do there was taken back.", self._cluster, name)
                await self._listener.withdrawn(self._cluster, name)
        elif wanted != self._there.get(name) and wanted:
            await access.grant(self._client, name, wanted)
            log.info("%s: what the identity of %s may do there was put right.", self._cluster, name)
        if self._due.get(name) == since:  # else somebody was at it meanwhile, and it is looked at again
            self._due.pop(name)

    async def _takes_leave(self, name: str) -> bool:
        """Whether a node that was deleted still has to drain itself and to say that it left, as its identity."""
        access, deleted = self._there.get(name), await self._listener.deleted(self._cluster, name)
        if access is None or access.way != "exec" or deleted is None or time.time() - deleted > self._gone_after:
            return False
        node = await self._client.find(f"{NODES}/{name}")
        return node is not None and is_ours(node)
