"""Taint controller: brings the taints of a cluster's Nodes in line with their resources."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import NODES, is_flex_node
from aks_flex_rp.clusters.taints import applied_taints, taint_patch, taints_annotation

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.clusters.taints import DesiredTaints

ATTEMPTS = 5  # at a Node that others are writing, too

log = logging.getLogger(__name__)


class TaintController:
    """Of one cluster. It is told of Nodes by the watch, and of what is wanted by the store."""

    def __init__(self, cluster: str, client: KubeClient, handler: ClusterEventHandler) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._seen: dict[str, tuple[str, str | None]] = {}  # of every flex node, which Node it is and its mark
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def saw(self, node: KubeObject) -> None:
        name, seen = node["metadata"]["name"], (node["metadata"]["uid"], applied_taints(node))
        if is_flex_node(node) and self._seen.get(name) != seen:
            self._seen[name] = seen
            self.mark_due(name)

    def gone(self, name: str) -> None:
        self._seen.pop(name, None)

    def mark_due(self, name: str | None) -> None:
        """What is wanted of this node may have changed; None for any node."""
        self._due |= dict.fromkeys(self._seen if name is None else [name])
        self._wake.set()

    async def run(self) -> None:
        """Bring those that are due, as soon as there are any, until something fails."""
        while True:
            await self._wake.wait()
            await self.reconcile_due()

    async def reconcile_due(self) -> None:
        """What fails is due again."""
        self._wake.clear()
        due, self._due = self._due, {}
        await handle_each(due, self._try)

    async def _try(self, name: str) -> None:
        try:
            await self._reconcile(name)
        except Exception:
            self.mark_due(name)
            raise

    async def _reconcile(self, name: str) -> None:
        if name not in self._seen:
            return  # when it comes into the cluster, the watch tells
        taints = await self._handler.desired_taints(self._cluster, name)
        if taints is None or not self._may_differ(name, taints):
            return
        for _ in range(ATTEMPTS):
            node = await self._client.find(f"{NODES}/{name}")
            change = taint_patch(node, taints) if node and is_flex_node(node) else None
            if node is None or change is None:
                return
            try:
                self.saw(await self._client.merge(f"{NODES}/{name}", change))
            except ApiRefused as refusal:
                if refusal.status == 409:
                    continue
                if refusal.status in {403, 422}:  # for a person to put right; trying again does not help
                    log.warning("%s: taints of %s cannot be changed: %s", self._cluster, name, refusal.message)
                    return
                raise
            log.info("%s: %s has the taints that are wanted.", self._cluster, name)
            return
        self.mark_due(name)

    def _may_differ(self, name: str, taints: DesiredTaints) -> bool:
        """By what was last seen of the Node: most nodes have no taints, and need not be asked for."""
        mark = self._seen[name][1]
        return (
            bool(taints.desired or taints.former)
            if mark is None
            else mark != taints_annotation(taints.by_key().values())
        )
