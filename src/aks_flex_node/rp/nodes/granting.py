"""A node that joins by its Azure identity is given what that identity needs in the cluster, before it is answered.

Nobody tells the service the object id of a service principal; the node's own token does, at its first call. First it
is given in the cluster, then it is noted with the node. Whoever got no answer asks again; what was given and not
noted, because the service ended in between, is taken back by the cluster's watch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError
from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.clusters.access import Access
from aks_flex_node.rp.nodes import accesses
from aks_flex_node.rp.nodes.accesses import access_of
from aks_flex_node.rp.store.store import Conflict

if TYPE_CHECKING:
    from aks_flex_node.rp.nodes.around import Known, Request, Workshop
    from aks_flex_node.rp.store.store import Document, Event, Node

ATTEMPTS = 5  # at a node that others are writing, too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Granting:
    shop: Workshop

    async def let_in(self, cluster: Known, node: Node, request: Request, *, introduction: bool = False) -> Node:
        """The node as it is then. With `introduction` it is about to join, and the cluster is asked in any case.

        ClusterError when the cluster does not answer, and nothing is noted then.
        """
        if accesses.is_over(node) and request.caller.is_node(node.identity):
            return await self._take(cluster, node, request)
        given = False
        for _ in range(ATTEMPTS):
            access = _wanted(node, request, introduction=introduction)
            if access is None:
                break
            if introduction or access_of(node) != access:
                await self.shop.clusters.grant(cluster.id.key, node.key, access)
                given = True
            join = _after(node, access, introduction=introduction)
            if join == node.join:
                return node
            try:
                return await self._note(cluster, node, join, access, request)
            except Conflict:
                found = await self.shop.store.node(node.cluster, node.key)
            if found is None:
                await self.shop.clusters.withdraw(cluster.id.key, node.key)
                raise errors.no_node(cluster.id, node.name)
            node = found
        else:
            raise errors.busy(node.name)
        if given and access_of(node) is None:  # it is somebody else now, or joins by a token
            await self.shop.clusters.withdraw(cluster.id.key, node.key)
        return node

    async def _take(self, cluster: Known, node: Node, request: Request) -> Node:
        """What it needs no more; first the note of it, so that the cluster's watch takes what is left."""
        access = access_of(node)
        after = replace(node, join={key: value for key, value in node.join.items() if key != accesses.ACCESS})
        said = {"identity": access.identity if access else ""}
        event = request.event(self.shop.now(), "access.withdrawn", cluster.id.node(node.name), **said)
        try:
            await self.shop.store.put_node(after, node.etag, [event])
        except Conflict:
            return node  # it is looked at again with its next call
        await self.shop.clusters.withdraw(cluster.id.key, node.key)
        return await self.shop.store.node(node.cluster, node.key) or after

    async def try_to_let_in(self, cluster: Known, node: Node, request: Request) -> None:
        """Where something else was asked for, which is not to wait for the cluster."""
        try:
            await self.let_in(cluster, node, request)
        except (ClusterError, errors.ArmError) as error:
            log.warning("%s cannot be let into its cluster now; it is tried again: %s", node.name, error)

    async def _note(self, cluster: Known, node: Node, join: Document, access: Access, request: Request) -> Node:
        events: list[Event] = []
        if access_of(node) != access:
            said = {"identity": access.identity, "role": access.role}
            events = [request.event(self.shop.now(), "access.granted", cluster.id.node(node.name), **said)]
        noted = replace(node, join=join)
        await self.shop.store.put_node(noted, node.etag, events)
        if "urlExpires" in node.join and "urlExpires" not in join:
            await self.shop.delivery.revoke(node.cluster, node.key)
        return await self.shop.store.node(node.cluster, node.key) or noted


def _wanted(node: Node, request: Request, *, introduction: bool) -> Access | None:
    """None for all who are not the node itself. A person's object id is not what a cluster knows that person by."""
    caller = request.caller
    way = accesses.next_way(node, caller.id, introduction=introduction)
    if way is None or caller.kind not in {"Application", "ManagedIdentity"} or not caller.is_node(node.identity):
        return None
    return Access(caller.id, way)


def _after(node: Node, access: Access, *, introduction: bool) -> Document:
    if introduction:
        return accesses.introduced(node.join, access)
    return {**node.join, accesses.ACCESS: access.to_document()}
