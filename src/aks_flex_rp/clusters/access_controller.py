"""Reconciles the ClusterRoleBindings of node identities with the store.

Bindings are created when a node requests access and removed when it is deleted. This controller handles the rest:
clusters that were unreachable, restarts in between, and manual changes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aks_flex_rp.clusters import access
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import LOST_AFTER_SECONDS, NODES, is_flex_node
from aks_flex_rp.join_state import AccessMethod

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.join_state import ClusterAccess

# Access is recorded only after it is granted, so a younger difference is not drift.
SETTLE_SECONDS = 15.0

log = logging.getLogger(__name__)


class AccessController:
    """Reconciles the access of the nodes of one cluster.

    Informed by the watch on bindings and by changes of nodes.
    """

    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        settle: float = SETTLE_SECONDS,
        gone_after: float = LOST_AFTER_SECONDS,
    ) -> None:
        self._gone_after = gone_after
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._settle = settle
        self._there: dict[
            str, ClusterAccess | None
        ] = {}  # by node; None if the binding differs from what the service creates
        self._due: dict[str, float] = {}  # by node, since when

    async def listed(self, items: list[KubeObject]) -> None:
        self._there = {name: access.read_binding(item) for item in items if (name := access.binding_node(item))}
        desired = await self._handler.all_granted_access(self._cluster)
        for name in {*self._there, *desired}:
            if self._there.get(name) != desired.get(name) or name not in desired:
                self.mark_due(name)

    async def changed(self, kind: str, item: KubeObject) -> None:
        name = access.binding_node(item)
        if kind == "DELETED":
            self._there.pop(name, None)
        elif name:
            self._there[name] = access.read_binding(item)
        if name:
            self._due[name] = time.monotonic()  # another process is changing it now

    def mark_due(self, name: str | None) -> None:
        """Marks a node for reconciliation, because its desired access may have changed. None means all nodes."""
        for one in self._there if name is None else [name]:
            self._due.setdefault(one, time.monotonic())

    async def clean_up(self) -> None:
        """Reconciles the nodes whose difference is old enough. A node that fails stays due."""
        await handle_each(list(self._due), self._reconcile)

    async def _reconcile(self, name: str) -> None:
        since = self._due[name]
        if time.monotonic() - since < self._settle:
            return
        desired = await self._handler.granted_access(self._cluster, name)
        if desired is None and name in self._there:
            if await self._is_leaving(name):
                self._due[name] = time.monotonic()  # check again later
                return
            if await access.withdraw_access(self._client, name):
                log.info("%s: removed the access of the identity of node %s.", self._cluster, name)
                await self._handler.on_access_withdrawn(self._cluster, name)
        elif desired and desired.role and desired != self._there.get(name):
            await access.grant_access(self._client, name, desired)
            log.info("%s: corrected the access of the identity of node %s.", self._cluster, name)
        if self._due.get(name) == since:  # otherwise it changed meanwhile and is checked again
            self._due.pop(name)

    async def _is_leaving(self, name: str) -> bool:
        """Returns whether a deleted node still needs its identity to drain and to report that it left."""
        access, deleted = self._there.get(name), await self._handler.deletion_time(self._cluster, name)
        if (
            access is None
            or access.method is not AccessMethod.EXEC
            or deleted is None
            or time.time() - deleted > self._gone_after
        ):
            return False
        node = await self._client.find(f"{NODES}/{name}")
        return node is not None and is_flex_node(node)
