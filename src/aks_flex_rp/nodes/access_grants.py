"""Grants the Azure identity of a node its role in the cluster, before the node's request is answered.

The object id of a service principal is known only from the node's own token, at its first call. The role is granted
in the cluster first and recorded with the node afterwards; a grant that was not recorded is withdrawn by the
cluster's access controller.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError
from aks_flex_rp.arm import errors
from aks_flex_rp.clusters.access import ClusterAccess
from aks_flex_rp.nodes import join_state
from aks_flex_rp.nodes.join_state import granted_access
from aks_flex_rp.store.interface import Conflict

if TYPE_CHECKING:
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.store.interface import AuditEvent, Document, Node

ATTEMPTS = 5  # at a node that others are writing, too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccessGrants:
    context: NodeContext

    async def ensure_access(
        self, cluster: ClusterInfo, node: Node, request: RequestContext, *, introduction: bool = False
    ) -> Node:
        """The node as it is then. With `introduction` it is about to join, and the cluster is asked in any case.

        ClusterError when the cluster does not answer, and nothing is noted then.
        """
        if join_state.is_access_obsolete(node) and request.caller.is_node(node.identity):
            return await self._withdraw(cluster, node, request)
        given = False
        for _ in range(ATTEMPTS):
            access = _wanted(node, request, introduction=introduction)
            if access is None:
                break
            if introduction or granted_access(node) != access:
                await self.context.clusters.grant(cluster.id.key, node.key, access)
                given = True
            join = _after(node, access, introduction=introduction)
            if join == node.join:
                return node
            try:
                return await self._store_access(cluster, node, join, access, request)
            except Conflict:
                found = await self.context.store.node(node.cluster, node.key)
            if found is None:
                await self.context.clusters.withdraw(cluster.id.key, node.key)
                raise errors.node_not_found(cluster.id, node.name)
            node = found
        else:
            raise errors.concurrent_changes(node.name)
        if given and granted_access(node) is None:  # it is somebody else now, or joins by a token
            await self.context.clusters.withdraw(cluster.id.key, node.key)
        return node

    async def _withdraw(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> Node:
        """What it needs no more; first the note of it, so that the cluster's watch takes what is left."""
        access = granted_access(node)
        after = replace(node, join={key: value for key, value in node.join.items() if key != join_state.ACCESS})
        said = {"identity": access.identity if access else ""}
        event = request.event(self.context.now(), "access.withdrawn", cluster.id.node(node.name), **said)
        try:
            await self.context.store.put_node(after, node.etag, [event])
        except Conflict:
            return node  # it is looked at again with its next call
        await self.context.clusters.withdraw(cluster.id.key, node.key)
        return await self.context.store.node(node.cluster, node.key) or after

    async def try_ensure_access(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> None:
        """Where something else was asked for, which is not to wait for the cluster."""
        try:
            await self.ensure_access(cluster, node, request)
        except (ClusterError, errors.ArmError) as error:
            log.warning("%s cannot be let into its cluster now; it is tried again: %s", node.name, error)

    async def _store_access(
        self, cluster: ClusterInfo, node: Node, join: Document, access: ClusterAccess, request: RequestContext
    ) -> Node:
        events: list[AuditEvent] = []
        if granted_access(node) != access:
            said = {"identity": access.identity, "role": access.role}
            events = [request.event(self.context.now(), "access.granted", cluster.id.node(node.name), **said)]
        noted = replace(node, join=join)
        await self.context.store.put_node(noted, node.etag, events)
        if "urlExpires" in node.join and "urlExpires" not in join:
            await self.context.delivery.revoke(node.cluster, node.key)
        return await self.context.store.node(node.cluster, node.key) or noted


def _wanted(node: Node, request: RequestContext, *, introduction: bool) -> ClusterAccess | None:
    """None for all who are not the node itself. A person's object id is not what a cluster knows that person by."""
    caller = request.caller
    way = join_state.next_method(node, caller.id, introduction=introduction)
    if way is None or caller.kind not in {"Application", "ManagedIdentity"} or not caller.is_node(node.identity):
        return None
    return ClusterAccess(caller.id, way)


def _after(node: Node, access: ClusterAccess, *, introduction: bool) -> Document:
    if introduction:
        return join_state.after_introduction(node.join, access)
    return {**node.join, join_state.ACCESS: access.to_document()}
