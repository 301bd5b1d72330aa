"""Replaces the role of earlier releases, system:node, of managed nodes that join by exec.

A kubelet of an earlier release watches Secrets, which the narrow role does not allow. So its node first gets a
configuration that says otherwise, and time to apply it. It then loses the role whether or not it has reported that:
root on a machine that never reports would otherwise keep it forever. An unmanaged node keeps it until its next join.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.cluster_sync import AT_ONCE, SYNC_ACTOR
from aks_flex_rp.resource import config_generator
from aks_flex_rp.store.model import AuditAction, AuditEvent, Conflict

if TYPE_CHECKING:
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.nodes.cluster_sync import ClusterSync
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.store.model import Node

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EarlierRoles:
    sync: ClusterSync
    finished: set[str] = field(default_factory=set)  # clusters without earlier roles, since the start of the service

    async def replace_all(self, key: str, facts: ClusterFacts) -> None:
        """Replaces the roles whose time is over. Called after every read of the facts; can be interrupted."""
        known = None if key in self.finished else await self.sync.context.clusters.find(key)
        if known is None:
            return
        cluster, after, left = replace(known, facts=facts), "", False
        while True:
            page = await self.sync.context.store.nodes(key, after, AT_ONCE)
            for node in page.nodes:
                if node.join.access and node.join.access.earlier_role:
                    left |= not await self._replace(cluster, node)
            if page.after is None:
                break
            after = page.after
        if not left:
            self.finished.add(key)

    async def _replace(self, cluster: ClusterInfo, node: Node) -> bool:
        """Returns whether the node now has the narrow role."""
        access, context = node.join.access, self.sync.context
        if access is None:
            return True
        by_name = config_generator.reads_secrets_by_name(node.config)
        if not by_name and await self.sync.sync_node(cluster, node):
            return False  # it has time to apply that
        if by_name and join_rules.needs_earlier_role(node, access.identity, context.now()):
            return False
        narrow = replace(access, earlier_role=False)
        event = AuditEvent(
            context.now(),
            SYNC_ACTOR,
            AuditAction.ACCESS_GRANTED,
            cluster.id.node(node.name),
            detail={"identity": narrow.identity, "role": narrow.role},
        )
        try:
            await context.clusters.grant(cluster.id.key, node.key, narrow)
            await context.store.put_node(replace(node, join=node.join.with_access(narrow)), node.etag, [event])
        except (ClusterError, Conflict) as error:
            log.warning("The earlier role of node %s could not be replaced, retrying later: %s", node.name, error)
            return False
        return True
