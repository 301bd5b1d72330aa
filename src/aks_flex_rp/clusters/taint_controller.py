"""Taint controller: reconciles the taints of a cluster's Nodes with their resources."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import NODES, is_flex_node
from aks_flex_rp.clusters.taints import applied_taints, taint_patch, taints_annotation

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.clusters.taints import DesiredTaints

ATTEMPTS = 5  # on conflicts with other writers of the Node

log = logging.getLogger(__name__)


@dataclass
class TaintController:
    """Reconciles the taints of one cluster's Nodes. Informed by the watch on Nodes and by changes of resources."""

    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    # UID and taints annotation of every flex node
    seen: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    due: dict[str, None] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def observe(self, node: KubeObject) -> None:
        name, seen = node["metadata"]["name"], (node["metadata"]["uid"], applied_taints(node))
        if is_flex_node(node) and self.seen.get(name) != seen:
            self.seen[name] = seen
            self.mark_due(name)

    def gone(self, name: str) -> None:
        self.seen.pop(name, None)

    def mark_due(self, name: str | None) -> None:
        """Marks a node for reconciliation, because its desired taints may have changed. None means all nodes."""
        self.due |= dict.fromkeys(self.seen if name is None else [name])
        self.wake.set()

    async def run(self) -> None:
        """Reconciles due nodes as they arrive, until an error."""
        while True:
            await self.wake.wait()
            await self.reconcile_due()

    async def reconcile_due(self) -> None:
        """Reconciles all due nodes. A node that fails stays due."""
        self.wake.clear()
        due, self.due = self.due, {}
        await handle_each(due, self._try)

    async def _try(self, name: str) -> None:
        try:
            await self._reconcile(name)
        except Exception:
            self.mark_due(name)
            raise

    async def _reconcile(self, name: str) -> None:
        if name not in self.seen:
            return  # the watch reports it when its Node is created
        taints = await self.handler.desired_taints(self.cluster, name)
        if taints is None or not self._may_differ(name, taints):
            return
        for _ in range(ATTEMPTS):
            node = await self.client.find(f"{NODES}/{name}")
            change = taint_patch(node, taints) if node and is_flex_node(node) else None
            if node is None or change is None:
                return
            try:
                self.observe(await self.client.merge(f"{NODES}/{name}", change))
            except ApiRefused as refusal:
                if refusal.status == 409:
                    continue
                if refusal.status in {403, 422}:  # needs an administrator, so a retry does not help
                    log.warning("%s: cannot change the taints of node %s: %s", self.cluster, name, refusal.message)
                    return
                raise
            log.info("%s: applied the taints of node %s.", self.cluster, name)
            return
        self.mark_due(name)

    def _may_differ(self, name: str, taints: DesiredTaints) -> bool:
        """Returns whether the taints may differ, from the last seen annotation.

        Most nodes have none and need no read.
        """
        annotation = self.seen[name][1]
        return (
            bool(taints.desired or taints.former)
            if annotation is None
            else annotation != taints_annotation(taints.by_key().values())
        )
