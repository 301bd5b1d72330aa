"""One cluster under watch: its certificates, its nodes, and what nodes must know of it. It survives an API server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters import objects
from aks_flex_node.rp.clusters.access import IDENTITY
from aks_flex_node.rp.clusters.approver import GRACE, Approver
from aks_flex_node.rp.clusters.arm import open_client
from aks_flex_node.rp.clusters.clients import Refused
from aks_flex_node.rp.clusters.facts import read_facts
from aks_flex_node.rp.clusters.keeping_access import SETTLE_SECONDS, KeepingAccess
from aks_flex_node.rp.clusters.lost_nodes import GONE_AFTER, LostNodes
from aks_flex_node.rp.clusters.nodes import NODES, NodeWatch
from aks_flex_node.rp.clusters.requests import REQUESTS
from aks_flex_node.rp.clusters.taints import Tainting
from aks_flex_node.rp.clusters.watches import Following, keep_doing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_node.rp.clusters.arm import ArmReader
    from aks_flex_node.rp.clusters.connections import Connection
    from aks_flex_node.rp.clusters.facts import ClusterFacts, Given
    from aks_flex_node.rp.clusters.listener import Listener

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often things are done, in seconds."""

    refresh: float = 60.0  # what nodes must know of the cluster
    tidy: float = 10.0  # what no event tells of
    grace: float = GRACE  # how long a certificate may take
    settle: float = SETTLE_SECONDS  # how long what nodes may do there may differ from what is noted
    gone_after: float = GONE_AFTER  # how long the Node of a deleted resource may be not Ready


class ClusterWatch:
    def __init__(
        self,
        cluster: str,
        connection: Connection,
        listener: Listener,
        *,
        arm: ArmReader | None = None,
        given: Given | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`given` is what a person said of the cluster."""
        self.client = open_client(connection, arm)
        self._cluster = cluster
        self._listener = listener
        self._given = given
        self._facts: ClusterFacts | None = None  # as they were last read
        self._pace = pace or Pace()
        self._tainting = Tainting(cluster, self.client, listener)
        self._access = KeepingAccess(cluster, self.client, listener, self._pace.settle, self._pace.gone_after)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns at once, whether the cluster answers or not."""
        approver = Approver(self._cluster, self.client, self._listener, self.facts, self._pace.grace)
        lost = LostNodes(self._cluster, self.client, self._listener, self._pace.gone_after)
        nodes = NodeWatch(self._cluster, self.client, self._listener, self._tainting, lost)
        self._do("certificates", Following(self.client, REQUESTS, approver).once)
        self._do("nodes", Following(self.client, NODES, nodes).once)
        self._do("access", Following(self.client, objects.BINDINGS, self._access, IDENTITY).once)
        self._do("taints", self._tainting.keep)
        self._do("old access", self._access.tidy, self._pace.tidy)
        self._do("lost nodes", lost.tidy, self._pace.refresh)
        self._do("tokens", approver.tidy, self._pace.tidy)
        self._do("old tokens", approver.sweep, self._pace.refresh)
        self._do("facts", self.refresh, self._pace.refresh)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def node_changed(self, name: str) -> None:
        """What is wanted of a node may be something else now; with no name, of any."""
        self._tainting.look_at(name)
        self._access.look_at(name)

    async def facts(self) -> ClusterFacts:
        return self._facts or await self._read()

    async def refresh(self) -> None:
        """Tell what nodes must know of the cluster, new or not, and put right what the cluster needs."""
        await self._listener.cluster_changed(self._cluster, await self._read())
        try:
            await objects.ensure(self.client)
        except Refused as refusal:  # for a person to grant; trying sooner does not help
            log.warning("%s: what flex nodes need cannot be put right: %s", self._cluster, refusal.message)

    async def _read(self) -> ClusterFacts:
        self._facts = await read_facts(self.client, self._given)
        return self._facts

    def _do(self, what: str, once: Callable[[], Awaitable[None]], rest: float = 0.0) -> None:
        name = f"{self._cluster}: {what}"
        self._tasks.append(asyncio.create_task(keep_doing(name, once, rest), name=name))
