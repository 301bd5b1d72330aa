"""Clusters that a user may see, and authorization of dashboard requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.api.authorization import parse_target
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.auth.roles import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.api.authorization import ArmTarget, Authorizer
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext

    Admission = tuple[ArmTarget, ClusterInfo, RequestContext]


@dataclass(frozen=True)
class ShownCluster:
    """A cluster with its label and links."""

    id: ClusterId
    cluster_number: int = 0  # its number in the fleet table; 0 without nodes
    is_unique: bool = True  # whether no other cluster that the user sees has its name

    @property
    def label(self) -> str:
        return self.id.name if self.is_unique else f"{self.id.group}/{self.id.name}"

    @property
    def path(self) -> str:
        return f"{self.id.subscription}/{self.id.group}/{self.id.name}"

    def node(self, name: str) -> str:
        """Returns the path of a node's page."""
        return f"/ui/nodes/{self.path}/{name}"

    def pool(self, name: str) -> str:
        """Returns the path of a pool's page."""
        return f"/ui/pools/{self.path}/{name}"

    def rollout(self, pool: str, name: str) -> str:
        """Returns the path of a roll-out's page."""
        return f"{self.pool(pool)}/rollouts/{name}"


@dataclass(frozen=True)
class DashboardScopes:
    """Authorizes dashboard requests with the rules of the API."""

    authorizer: Authorizer

    async def clusters(self, caller: Caller, operation: Operation = Operation.LIST) -> tuple[ShownCluster, ...]:
        """Returns the clusters in which the caller is permitted the operation."""
        store = self.authorizer.context.store
        numbers = await store.cluster_numbers()
        ids = [found for each in await store.clusters() if (found := parse_cluster_id(each.id))]
        # Concurrently: with Azure role assignments, each cluster is a request to Azure every few minutes.
        permitted = await asyncio.gather(*(self.authorizer.roles.allows(caller, operation, each) for each in ids))
        allowed = [each for each, is_permitted in zip(ids, permitted, strict=True) if is_permitted]
        names = [each.name.lower() for each in allowed]
        return tuple(
            ShownCluster(each, numbers.get(each.key, 0), names.count(each.name.lower()) == 1) for each in allowed
        )

    async def node(self, page_request: PageRequest, operation: Operation) -> Admission:
        """Authorizes the operation on the node in the path."""
        parts = page_request.incoming.path_params
        return await self.admit(page_request, operation, _cluster_of(parts).node(parts["node"]))

    async def pool(self, page_request: PageRequest, operation: Operation) -> Admission:
        """Authorizes the operation on the pool in the path."""
        parts = page_request.incoming.path_params
        return await self.admit(page_request, operation, _cluster_of(parts).pool(parts["pool"]))

    async def admit(self, page_request: PageRequest, operation: Operation, resource: str) -> Admission:
        """Authorizes the operation on a resource, which may not exist yet. Returns its parsed ID and its cluster."""
        where = parse_target(resource)
        request = await self.authorizer.admit(
            operation, where, page_request.caller, page_request.request_id, page_request.source
        )
        known = await self.authorizer.context.clusters.find(where.cluster.key)
        if known is None:
            raise errors.cluster_not_found(where.cluster)
        return where, known, request

    async def may(self, page_request: PageRequest, operation: Operation, cluster: ClusterId) -> bool:
        """Whether the user is permitted the operation, without an audit event."""
        known = await self.authorizer.context.clusters.find(cluster.key)
        return await self.authorizer.roles.allows(page_request.caller, operation, cluster, ask=known is not None)


def _cluster_of(parts: Mapping[str, str]) -> ClusterId:
    return ClusterId(parts["subscription"], parts["group"], parts["cluster"])
