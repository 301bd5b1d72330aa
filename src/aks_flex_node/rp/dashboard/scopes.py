"""The clusters that a person may see, and how pages call them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.ids import ClusterId, cluster_id
from aks_flex_node.rp.serving.doors import target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.rp.auth.roles import Operation
    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known, Request
    from aks_flex_node.rp.serving.doors import Doors, Target


@dataclass(frozen=True)
class Shown:
    """A cluster as a page shows it."""

    id: ClusterId
    place: int  # its number in the fleet; 0 before it has nodes
    label: str  # its name, with its group where two have the same

    @property
    def path(self) -> str:
        return f"{self.id.subscription}/{self.id.group}/{self.id.name}"

    def node(self, name: str) -> str:
        """The page of one of its nodes."""
        return f"/ui/nodes/{self.path}/{name}"


@dataclass(frozen=True)
class Scopes:
    doors: Doors

    async def clusters(self, caller: Caller, operation: Operation = "list") -> tuple[Shown, ...]:
        """Those in which the caller may do this."""
        store = self.doors.shop.store
        places = await store.places()
        ids = [found for each in await store.clusters() if (found := cluster_id(each.id))]
        # All at once: where Azure assigns roles, each cluster is a question to it every few minutes.
        verdicts = await asyncio.gather(*(self.doors.roles.allows(caller, operation, each) for each in ids))
        allowed = [each for each, verdict in zip(ids, verdicts, strict=True) if verdict]
        names = [each.name.lower() for each in allowed]
        alone = {each: names.count(each) == 1 for each in names}
        return tuple(
            Shown(
                each, places.get(each.key, 0), each.name if alone[each.name.lower()] else f"{each.group}/{each.name}"
            )
            for each in allowed
        )

    async def node(self, visit: Visit, operation: Operation) -> tuple[Target, Known, Request]:
        """The node that the address names, once the caller is let in to do this with it."""
        return await self._admit(visit, operation, visit.incoming.path_params)

    async def new_node(self, visit: Visit, cluster: ClusterId, name: str) -> tuple[Target, Known, Request]:
        """One that may not be there yet."""
        parts = {"subscription": cluster.subscription, "group": cluster.group, "cluster": cluster.name, "node": name}
        return await self._admit(visit, "write", parts)

    async def _admit(
        self, visit: Visit, operation: Operation, parts: Mapping[str, str]
    ) -> tuple[Target, Known, Request]:
        cluster = ClusterId(parts["subscription"], parts["group"], parts["cluster"])
        where = target(cluster.node(parts["node"]))
        request = await self.doors.admit(operation, where, visit.caller, visit.request_id, visit.source)
        known = await self.doors.shop.clusters.find(where.cluster.key)
        if known is None:
            raise errors.no_cluster(where.cluster)
        return where, known, request

    async def may(self, visit: Visit, operation: Operation, cluster: ClusterId) -> bool:
        return await self.doors.roles.allows(visit.caller, operation, cluster)
