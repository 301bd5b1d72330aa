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


@dataclass(frozen=True)
class ShownCluster:
    """A cluster as a page shows it."""

    id: ClusterId
    cluster_number: int  # its number in the fleet; 0 before it has nodes
    label: str  # its name, with its group where two have the same

    @property
    def path(self) -> str:
        return f"{self.id.subscription}/{self.id.group}/{self.id.name}"

    def node(self, name: str) -> str:
        """The page of one of its nodes."""
        return f"/ui/nodes/{self.path}/{name}"


@dataclass(frozen=True)
class DashboardScopes:
    authorizer: Authorizer

    async def clusters(self, caller: Caller, operation: Operation = Operation.LIST) -> tuple[ShownCluster, ...]:
        """Those in which the caller may do this."""
        store = self.authorizer.context.store
        numbers = await store.cluster_numbers()
        ids = [found for each in await store.clusters() if (found := parse_cluster_id(each.id))]
        # All at once: where Azure assigns roles, each cluster is a question to it every few minutes.
        verdicts = await asyncio.gather(*(self.authorizer.roles.allows(caller, operation, each) for each in ids))
        allowed = [each for each, verdict in zip(ids, verdicts, strict=True) if verdict]
        names = [each.name.lower() for each in allowed]
        alone = {each: names.count(each) == 1 for each in names}
        return tuple(
            ShownCluster(
                each, numbers.get(each.key, 0), each.name if alone[each.name.lower()] else f"{each.group}/{each.name}"
            )
            for each in allowed
        )

    async def node(
        self, page_request: PageRequest, operation: Operation
    ) -> tuple[ArmTarget, ClusterInfo, RequestContext]:
        """The node that the address names, once the caller is let in to do this with it."""
        return await self._admit(page_request, operation, page_request.incoming.path_params)

    async def new_node(
        self, page_request: PageRequest, cluster: ClusterId, name: str
    ) -> tuple[ArmTarget, ClusterInfo, RequestContext]:
        """One that may not be there yet."""
        parts = {"subscription": cluster.subscription, "group": cluster.group, "cluster": cluster.name, "node": name}
        return await self._admit(page_request, Operation.WRITE, parts)

    async def _admit(
        self, page_request: PageRequest, operation: Operation, parts: Mapping[str, str]
    ) -> tuple[ArmTarget, ClusterInfo, RequestContext]:
        cluster = ClusterId(parts["subscription"], parts["group"], parts["cluster"])
        where = parse_target(cluster.node(parts["node"]))
        request = await self.authorizer.admit(
            operation, where, page_request.caller, page_request.request_id, page_request.source
        )
        known = await self.authorizer.context.clusters.find(where.cluster.key)
        if known is None:
            raise errors.cluster_not_found(where.cluster)
        return where, known, request

    async def may(self, page_request: PageRequest, operation: Operation, cluster: ClusterId) -> bool:
        return await self.authorizer.roles.allows(page_request.caller, operation, cluster)
