"""The clusters that the service knows, each with a watch that runs, kept in step with the store.

Clusters are added and removed by `aks-flex-rp cluster`, which is another process, or on another replica. So the store
is looked at every few seconds, and at once when a cluster is asked for that is not known yet.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.rp.arm.ids import cluster_id
from aks_flex_node.rp.clusters import access as accesses
from aks_flex_node.rp.clusters import connections, tokens
from aks_flex_node.rp.clusters.clients import Refused
from aks_flex_node.rp.clusters.facts import ClusterFacts
from aks_flex_node.rp.clusters.nodes import taken
from aks_flex_node.rp.clusters.watches import keep_doing
from aks_flex_node.rp.nodes.around import Known
from aks_flex_node.rp.nodes.following import WAYS
from aks_flex_node.rp.resource.ways import Ways

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_node.rp.clusters.access import Access
    from aks_flex_node.rp.clusters.tokens import MintedToken
    from aks_flex_node.rp.clusters.watching import ClusterWatch
    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.store.store import Cluster, Store

SYNC_SECONDS = 2.0
GRANT_SECONDS = 10.0  # below what a difference may last before the watch puts it right

log = logging.getLogger(__name__)


def connection_context(key: str) -> str:
    """What a sealed connection is bound to."""
    return f"connection of {key}"


def known(cluster: Cluster) -> Known:
    name = cluster_id(cluster.id)
    if name is None:
        raise AssertionError(f"{cluster.id} was checked when it was added.")
    facts, ways = ClusterFacts.from_document(cluster.facts), cluster.facts.get(WAYS)
    follow = bool(cluster.facts.get("followVersion"))
    return Known(name, facts, follow, Ways.from_document(ways) if ways is not None else None)


def _refuses(key: str, what: str, refusal: Refused) -> ClusterError:
    return ClusterError(
        "cluster-refuses",
        f"The cluster does not let the service {what}: {refusal.message}.",
        f"Look with `aks-flex-rp cluster check {key}`.",
        again=refusal.status == 429 or refusal.status >= 500,
    )


class Connected:
    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        watch: Callable[[Cluster, connections.Connection], ClusterWatch],
        count: Callable[[str], None],
    ) -> None:
        self._store, self._sealer, self._watch, self._count = store, sealer, watch, count
        self._clusters: dict[str, Cluster] = {}
        self._watches: dict[str, tuple[bytes, ClusterWatch]] = {}
        self._syncing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        changes = self._store.changes()
        await self._sync()
        syncing = keep_doing("clusters", self._sync, SYNC_SECONDS)
        self._tasks = [asyncio.create_task(syncing), asyncio.create_task(self._pass_on(changes))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, watch in self._watches.values():
            await watch.stop()
        self._watches.clear()

    @property
    def count(self) -> int:
        return len(self._clusters)

    async def find(self, key: str) -> Known | None:
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = await self._store.cluster(key)
            if cluster is not None:
                await self._sync()
        return known(cluster) if cluster else None

    async def is_there(self, key: str) -> bool:
        return await self._store.cluster(key) is not None

    async def mint(self, key: str, node: str, expires: float) -> MintedToken:
        """ClusterError when the cluster cannot be asked, does not let us, or has another node of that name."""
        client = self._watch_of(key).client
        try:
            why = await taken(client, node)
            if why:
                raise ClusterError("node-name-taken", why, "Choose another name, or remove that Node first.")
            minted = await tokens.mint(client, node, datetime.fromtimestamp(expires, timezone.utc))
        except Refused as refusal:
            raise _refuses(key, "make a bootstrap token", refusal) from refusal
        self._count("minted")
        return minted

    async def revoke(self, key: str, token: str) -> bool:
        try:
            await tokens.revoke(self._watch_of(key).client, token)
        except (FlexError, Refused) as error:
            log.warning("Token %s could not be revoked now, and is swept later: %s", token, error)
            return False
        self._count("revoked")
        return True

    async def grant(self, key: str, node: str, access: Access) -> None:
        """Within a bound: whoever asks for it waits for the answer."""
        client = self._watch_of(key).client
        try:
            await asyncio.wait_for(accesses.grant(client, node, access), GRANT_SECONDS)
        except Refused as refusal:
            raise _refuses(key, "let this node in", refusal) from refusal
        except asyncio.TimeoutError:
            raise ClusterError(
                "cluster-unreachable",
                f"{key} did not answer within {GRANT_SECONDS:.0f} s.",
                "Check that the API server runs, and that no firewall is between it and this service.",
                again=True,
            ) from None

    async def withdraw(self, key: str, node: str) -> bool:
        try:
            await asyncio.wait_for(accesses.withdraw(self._watch_of(key).client, node), GRANT_SECONDS)
        except (FlexError, Refused, asyncio.TimeoutError) as error:
            log.warning("What %s may do in its cluster could not be taken now, and is taken later: %s", node, error)
            return False
        return True

    def _watch_of(self, key: str) -> ClusterWatch:
        found = self._watches.get(key)
        if found is None:
            raise ClusterError(
                "cluster-not-connected",
                f"The service has no connection to {key} yet.",
                "Try again in a few seconds; if it stays, look at the service's log.",
                again=True,
            )
        return found[1]

    async def _pass_on(self, changes: AsyncIterator[tuple[str, str, int]]) -> None:
        """What is written here or on another replica, to whom it concerns: their watch brings it to the cluster."""
        async for cluster, node, _ in changes:
            concerned = [cluster] if cluster else list(self._watches)
            for _, watch in [self._watches[key] for key in concerned if key in self._watches]:
                watch.node_changed(node)

    async def _sync(self) -> None:
        async with self._syncing:
            found = {cluster.key: cluster for cluster in await self._store.clusters()}
            self._clusters = found
            for key in [
                key for key, (made_of, _) in self._watches.items() if self._made_of(found.get(key)) != made_of
            ]:
                await self._watches.pop(key)[1].stop()
            for key in found.keys() - self._watches.keys():
                await self._begin(found[key])

    @staticmethod
    def _made_of(cluster: Cluster | None) -> bytes:
        """A watch is begun anew when the way to its cluster is another one, not whenever the cluster changes."""
        return cluster.connection if cluster else b""

    async def _begin(self, cluster: Cluster) -> None:
        try:
            opened = connections.from_bytes(self._sealer.open(cluster.connection, connection_context(cluster.key)))
            watch = self._watch(cluster, opened)
            await watch.start()
        except FlexError as error:
            log.error("The cluster %s cannot be watched: %s", cluster.id, error)
            return
        self._watches[cluster.key] = (cluster.connection, watch)
