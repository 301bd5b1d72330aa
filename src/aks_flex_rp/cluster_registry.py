"""Registry of the clusters that the service knows: one running controller per cluster, in sync with the store.

Another process (`aks-flex-rp cluster`) or another replica adds and removes clusters, so the store is read every few
seconds, and immediately when an unknown cluster is requested.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from aks_flex_node.api.contract import MACHINE_ANNOTATION
from aks_flex_node.api.node_keys import AUDIENCE_PREFIX
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.clusters import access as accesses
from aks_flex_rp.clusters import bootstrap_tokens, connections
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.clusters.holder import HOLDER_FACT
from aks_flex_rp.clusters.informer import run_periodically
from aks_flex_rp.clusters.node_controller import NODES, NodeMachine, name_conflict, node_machine
from aks_flex_rp.nodes.cluster_sync import ENDPOINTS
from aks_flex_rp.nodes.context import ClusterInfo
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.store.changes import Disconnected, NodeDeleted, NodeWritten, Resync
from aks_flex_rp.time_limit import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from aks_flex_rp.clusters.bootstrap_tokens import MintedToken
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.controller import ClusterController
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.join_state import ClusterAccess
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.changes import StoreChange
    from aks_flex_rp.store.model import Cluster

SYNC_SECONDS = 2.0
MACHINE_SECONDS = 5.0
GRANT_SECONDS = 10.0  # shorter than the time after which the controller corrects a difference

T = TypeVar("T")

log = logging.getLogger(__name__)


def connection_seal_context(key: str) -> str:
    """Returns the context that binds an encrypted cluster connection to its cluster."""
    return f"connection of {key}"


def cluster_info(cluster: Cluster) -> ClusterInfo:
    name = parse_cluster_id(cluster.id)
    if name is None:
        raise AssertionError(f"{cluster.id} is not a cluster ID, although it was validated when it was added.")
    facts, endpoints = ClusterFacts.from_document(cluster.facts), cluster.facts.get(ENDPOINTS)
    follow = bool(cluster.facts.get("followVersion"))
    holder = str(cluster.facts.get(HOLDER_FACT) or "")
    return ClusterInfo(
        name,
        facts,
        follow,
        AgentEndpoints.from_document(endpoints) if endpoints is not None else None,
        f"{AUDIENCE_PREFIX}{holder}" if holder else "",
    )


def _refuses(key: str, what: str, refusal: ApiRefused) -> ClusterError:
    return ClusterError(
        "cluster-forbidden",
        f"The cluster rejected the request to {what}: {refusal.message}.",
        f"Run `aks-flex-rp cluster check {key}`.",
        retryable=refusal.status == 429 or refusal.status >= 500,
    )


async def _answered(key: str, what: str, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a request to a cluster. Raises ClusterError if it is rejected or takes too long."""
    try:
        return await within(seconds, work)
    except ApiRefused as refusal:
        raise _refuses(key, what, refusal) from refusal
    except asyncio.TimeoutError:
        raise ClusterError(
            "cluster-unreachable",
            f"{key} did not respond within {seconds:.0f} s.",
            "Check that the API server is running, and that no firewall blocks the service.",
            retryable=True,
        ) from None


class ClusterRegistry:
    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        watch: Callable[[Cluster, connections.ClusterConnection], ClusterController],
        count: Callable[[str], None],
    ) -> None:
        self._store, self._sealer, self._watch, self._count = store, sealer, watch, count
        self._clusters: dict[str, Cluster] = {}
        self._infos: dict[str, ClusterInfo] = {}  # filled on first use
        self._watches: dict[str, tuple[bytes, ClusterController]] = {}
        self._failures: dict[str, str] = {}  # why a cluster is not watched, as logged
        self._syncing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        changes = self._store.changes()
        await self._sync()
        syncing = run_periodically("clusters", self._sync, SYNC_SECONDS)
        self._tasks = [asyncio.create_task(syncing), asyncio.create_task(self._forward_changes(changes))]

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

    async def find(self, key: str) -> ClusterInfo | None:
        if info := self._infos.get(key):
            return info
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = await self._store.cluster(key)
            if cluster is None:
                return None
            await self._sync()
        info = cluster_info(cluster)
        if self._clusters.get(key) == cluster:
            self._infos[key] = info
        return info

    def client(self, key: str) -> KubeClient:
        """Returns the client of a cluster. Raises ClusterError if the service is not connected to it."""
        return self._controller(key).client

    async def is_there(self, key: str) -> bool:
        return await self._store.cluster(key) is not None

    async def mint(self, key: str, node: str, expires: float) -> MintedToken:
        """Creates a bootstrap token for a node.

        Raises ClusterError when the cluster is unreachable, rejects the request, or has another Node of that name.
        """
        client = self.client(key)
        try:
            why = await name_conflict(client, node)
            if why:
                raise ClusterError("node-name-taken", why, "Choose another name, or delete that Node first.")
            minted = await bootstrap_tokens.mint_token(client, node, datetime.fromtimestamp(expires, timezone.utc))
        except ApiRefused as refusal:
            raise _refuses(key, "create a bootstrap token", refusal) from refusal
        self._count("minted")
        return minted

    async def revoke(self, key: str, token: str) -> bool:
        try:
            await bootstrap_tokens.revoke_token(self.client(key), token)
        except (FlexError, ApiRefused) as error:
            log.warning("Token %s could not be revoked and will be revoked later: %s", token, error)
            return False
        self._count("revoked")
        return True

    async def grant(self, key: str, node: str, access: ClusterAccess) -> None:
        """Grants a node's identity access to its cluster, with a time limit because the caller waits for the
        response.
        """
        granting = accesses.grant_access(self.client(key), node, access)
        await _answered(key, "grant access to this node", GRANT_SECONDS, granting)

    async def withdraw(self, key: str, node: str) -> bool:
        try:
            await within(GRANT_SECONDS, accesses.withdraw_access(self.client(key), node))
        except (FlexError, ApiRefused, asyncio.TimeoutError) as error:
            log.warning("The cluster access of %s could not be removed and will be removed later: %s", node, error)
            return False
        return True

    async def node_machine(self, key: str, node: str) -> NodeMachine | None:
        reading = self.client(key).find(f"{NODES}/{node}")
        found = await _answered(key, f"read Node {node}", MACHINE_SECONDS, reading)
        return node_machine(found) if found else None

    async def mark_machine(self, key: str, node: str, machine_id: str) -> None:
        mark = {"metadata": {"annotations": {MACHINE_ANNOTATION: machine_id}}}
        try:
            client = self.client(key)
            await within(MACHINE_SECONDS, client.merge(f"{NODES}/{node}", mark))
        except (FlexError, ApiRefused, asyncio.TimeoutError) as error:
            log.warning("The Node %s could not be annotated with its machine: %s", node, error)

    def _controller(self, key: str) -> ClusterController:
        found = self._watches.get(key)
        if found is None:
            raise ClusterError(
                "cluster-not-connected",
                f"The service is not connected to {key} yet.",
                "Try again in a few seconds. If it fails again, check the service's log.",
                retryable=True,
            )
        return found[1]

    async def _forward_changes(self, changes: AsyncIterator[StoreChange]) -> None:
        """Forwards changes from this and other replicas to the controllers of the clusters that they concern."""
        async for change in changes:
            match change:
                case NodeWritten(cluster, node) | NodeDeleted(cluster, node):
                    if found := self._watches.get(cluster):
                        found[1].node_changed(node)
                case Resync() | Disconnected():
                    for _, watch in list(self._watches.values()):
                        watch.node_changed(None)

    async def _sync(self) -> None:
        async with self._syncing:
            found = {cluster.key: cluster for cluster in await self._store.clusters()}
            same = {key for key, cluster in found.items() if cluster == self._clusters.get(key)}
            self._infos = {key: info for key, info in self._infos.items() if key in same}
            self._clusters = found
            for key, (connection, watch) in list(self._watches.items()):  # restarted only with another connection
                if key not in found or found[key].connection != connection:
                    del self._watches[key]
                    await watch.stop()
            self._failures = {key: why for key, why in self._failures.items() if key in found}
            for key in found.keys() - self._watches.keys():
                await self._start_controller(found[key])

    async def _start_controller(self, cluster: Cluster) -> None:
        """Watches a cluster. A failure is retried at every sync, and logged when its reason changes."""
        try:
            opened = connections.from_bytes(
                self._sealer.open(cluster.connection, connection_seal_context(cluster.key))
            )
            watch = self._watch(cluster, opened)
            await watch.start()
        except FlexError as error:
            if self._failures.get(cluster.key) != str(error):
                log.error("Cannot watch the cluster %s: %s", cluster.id, error)
            self._failures[cluster.key] = str(error)
            return
        self._failures.pop(cluster.key, None)
        self._watches[cluster.key] = (cluster.connection, watch)
