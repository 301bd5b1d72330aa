"""The commands of a service on a real store, with a cluster in memory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.cluster_registry import cluster_info
from aks_flex_rp.crypto.encryption import open_sealer_keys
from aks_flex_rp.delivery.config_url import BuiltInDelivery
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.context import NodeContext, RequestContext
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.model import Cluster
from aks_flex_rp.store.sqlite import SqliteStore
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, facts
from tests.service.rp.store.builders import record_authenticator, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aks_flex_rp.nodes.commands import WriteResult
    from aks_flex_rp.store.model import LastKnownNode, Node

REQUEST = RequestContext(Caller("me", "me", CallerKind.USER), "1")
FACTS = facts("b2xk", "1.33.1")


class CountingStore(SqliteStore):
    """Counts the lookups of deleted nodes."""

    lookups = 0

    async def last_known_node(self, cluster: str, key: str) -> LastKnownNode:
        self.lookups += 1
        return await super().last_known_node(cluster, key)


class Site:
    """A cluster and its nodes."""

    def __init__(self, store: CountingStore, room: Path) -> None:
        sealer = open_sealer_keys(room / "keys", {})
        self.store, self.clusters, self.now = store, FakeClusters.of([]), 1000.0
        delivery = BuiltInDelivery(store, sealer, "https://rp.example")
        self.context = NodeContext(store, sealer, delivery, self.clusters, now=lambda: self.now)
        self.commands = NodeCommands(self.context)

    async def add_cluster(self, *, follow_version: bool = False) -> None:
        """Adds the cluster, or changes whether it follows the version of its API server."""
        document = {**FACTS.to_document(), "followVersion": follow_version}
        before = await self.store.cluster(PLANT.key)
        cluster = Cluster(PLANT.key, str(PLANT), document, b"", before.version + 1 if before else 1)
        await self.store.put_cluster(cluster, before.version if before else None)
        self.clusters.known[PLANT.key] = cluster_info(cluster)

    async def put(
        self, name: str = "edge", *, url: bool = False, downgrade: bool = False, **properties: Any
    ) -> WriteResult:
        guard = Preconditions(allow_downgrade=downgrade)
        body = {"properties": properties}
        return await self.commands.put(self.clusters.known[PLANT.key], name, body, guard, REQUEST, url=url)

    async def delete(self, name: str = "edge") -> None:
        await self.commands.delete(self.clusters.known[PLANT.key], name, Preconditions(), REQUEST)

    async def node(self, name: str) -> Node:
        node = await self.store.node(PLANT.key, name)
        assert node
        return node


@asynccontextmanager
async def site_with_cluster(room: Path) -> AsyncIterator[Site]:
    async with started(CountingStore(room / "flex.db", record_authenticator())) as store:
        site = Site(store, room)
        await site.add_cluster()
        yield site
