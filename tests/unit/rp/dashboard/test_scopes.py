"""Tests of the clusters that a user can see when each needs a role lookup."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.dashboard.scopes import DashboardScopes
from aks_flex_rp.store.model import Cluster

if TYPE_CHECKING:
    from aks_flex_rp.api.authorization import Authorizer
    from aks_flex_rp.arm.ids import ClusterId

ABOVE = "/subscriptions/12345678-1234-1234-1234-123456789abc/resourceGroups/edge/providers"
IDS = [f"{ABOVE}/Microsoft.ContainerService/managedClusters/{name}" for name in ("oslo", "paris", "rome")]


@dataclass
class SlowRoles:
    """Responds only after all requests have arrived, to check that they are concurrent."""

    asked: int = 0
    all_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def allows(self, _: object, __: object, cluster: ClusterId) -> bool:
        self.asked += 1
        if self.asked == len(IDS):
            self.all_asked.set()
        await self.all_asked.wait()
        return cluster.name != "paris"


class KnownClusters:
    async def cluster_numbers(self) -> dict[str, int]:
        return {IDS[0].lower(): 7}

    async def clusters(self) -> tuple[Cluster, ...]:
        return tuple(Cluster(each.lower(), each, {}, b"") for each in IDS)


def test_cluster_permissions_are_requested_concurrently_in_order() -> None:
    async def work() -> list[tuple[str, int]]:
        doors = SimpleNamespace(context=SimpleNamespace(store=KnownClusters()), roles=SlowRoles())
        found = await asyncio.wait_for(DashboardScopes(cast("Authorizer", doors)).clusters(ADMIN_CALLER), 30)
        return [(each.label, each.cluster_number) for each in found]

    assert asyncio.run(work()) == [("oslo", 7), ("rome", 0)]
