"""Grants the Azure identity of a node its role in the cluster, before the node's request is answered.

The object ID of a service principal is known only from the node's own token, at its first call. The role is granted
in the cluster first and recorded with the node afterwards. A grant that was not recorded is withdrawn by the
cluster's access controller.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError
from aks_flex_rp.arm import errors
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.join_state import ClusterAccess
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.store.model import AuditAction, Conflict

if TYPE_CHECKING:
    from aks_flex_rp.join_state import JoinState
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.store.model import AuditEvent, Node

WORKLOADS = frozenset({CallerKind.APPLICATION, CallerKind.MANAGED_IDENTITY})

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccessGrants:
    context: NodeContext

    async def ensure_access(
        self, cluster: ClusterInfo, node: Node, request: RequestContext, *, joining: bool = False
    ) -> Node:
        """Ensures the access of the calling node and returns the updated node.

        With `joining` the node is about to join, and the grant is applied in any case. Raises ClusterError if
        the cluster does not respond; nothing is recorded then.
        """
        if join_rules.is_access_obsolete(node) and request.acts_as_node:
            return await self._withdraw(cluster, node, request)
        granted = False

        async def grant(found: Node | None) -> Node:
            nonlocal granted
            if found is None:
                await self.context.clusters.withdraw(cluster.key, node.key)
                raise await self.context.missing_node(cluster, node.name, request)
            access = _desired_access(found, request, joining=joining)
            if access is None:
                if granted and found.join.access is None:  # the node has another identity now, or joins with a token
                    await self.context.clusters.withdraw(cluster.key, node.key)
                return found
            if joining or found.join.access != access:
                await self.context.clusters.grant(cluster.key, node.key, access)
                granted = True
            join = found.join.joining(access) if joining else found.join.with_access(access)
            return found if join == found.join else await self._store_access(cluster, found, join, access, request)

        return await self.context.change_node(node.cluster, node.name, grant, known=node)

    async def _withdraw(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> Node:
        """Removes access that is no longer needed.

        The record is removed first, so that the access controller can finish.
        """
        access = node.join.access
        after = replace(node, join=node.join.without_access())
        detail = {"identity": access.identity if access else ""}
        event = request.event(self.context.now(), AuditAction.ACCESS_WITHDRAWN, cluster.id.node(node.name), **detail)
        try:
            await self.context.store.put_node(after, node.etag, [event])
        except Conflict:
            return node  # checked again at its next call
        await self.context.clusters.withdraw(cluster.key, node.key)
        return await self.context.store.node(node.cluster, node.key) or after

    async def try_ensure_access(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> Node:
        """Ensures the access, but only logs a failure: the request was about something else and must not wait for
        it. Returns the updated node.
        """
        try:
            return await self.ensure_access(cluster, node, request)
        except (ClusterError, errors.ArmError) as error:
            log.warning("%s could not be granted access to its cluster, retrying later: %s", node.name, error)
            return node

    async def _store_access(
        self, cluster: ClusterInfo, node: Node, join: JoinState, access: ClusterAccess, request: RequestContext
    ) -> Node:
        events: list[AuditEvent] = []
        if node.join.access != access:
            detail = {"identity": access.identity, "role": access.role}
            events = [
                request.event(self.context.now(), AuditAction.ACCESS_GRANTED, cluster.id.node(node.name), **detail)
            ]
        noted = replace(node, join=join)
        await self.context.store.put_node(noted, node.etag, events)
        if node.join.url_expires is not None and join.url_expires is None:
            await self.context.delivery.revoke(node.cluster, node.key)
        return await self.context.store.node(node.cluster, node.key) or noted


def _desired_access(node: Node, request: RequestContext, *, joining: bool) -> ClusterAccess | None:
    """Returns the access that the calling node needs, or None if the caller is not the node itself.

    Users are excluded: a cluster does not know them by their object ID.
    """
    caller, known = request.caller, node.join.access
    if request.key_use and known:
        identity = known.identity  # a node that calls by its key has signed in with its identity before
    elif request.acts_as_node and caller.is_node(node.identity) and caller.kind in WORKLOADS:
        identity = caller.id  # the node may have got another identity since the request was authorized
    else:
        return None
    method = join_rules.next_method(node, identity, joining=joining)
    return ClusterAccess(identity, method) if method else None
