"""Finds the template for a write of a node: of the revision that it is on, or of the stable one of its new pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm import errors
from aks_flex_rp.resource.effective import POOL_NAME
from aks_flex_rp.resource.validation import PoolTemplate

if TYPE_CHECKING:
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool


def pool_missing(name: str) -> errors.ArmError:
    return errors.invalid(
        f"properties.{POOL_NAME}",
        f"The cluster has no pool '{name[:80]}'. Correct the name, or create it with `aks-flex-rp pool create`.",
    )


@dataclass(frozen=True)
class PoolTemplates:
    store: Store

    async def for_node(self, cluster: ClusterInfo, body: dict[str, Any], before: Node | None) -> PoolTemplate | None:
        """Returns the template for a write with this body, or None without a pool. Raises ArmError if there is none.

        A name of another type is a problem that validation reports.
        """
        properties = body.get("properties")
        name = properties.get(POOL_NAME) if isinstance(properties, dict) else None
        if not isinstance(name, str):
            return None
        pool = await self.store.pool(cluster.key, name)
        if pool is None:
            raise pool_missing(name)
        if before and before.pool and before.pool.name == pool.key:
            return await self.of_revision(pool, before.pool.revision)
        return await self.of_revision(pool, await self.stable_revision(pool))

    async def stable_revision(self, pool: Pool) -> int:
        """Returns the revision on which new nodes start: the newest, unless roll-outs bring nodes to it."""
        return (await self.store.pool_versions(pool)).stable or pool.number

    async def of_revision(self, pool: Pool, number: int) -> PoolTemplate:
        """Returns the template of a revision. Raises ArmError if it does not exist."""
        revision = await self.store.pool_revision(pool, number)
        if revision is None:
            raise errors.revision_not_found(pool.key, number)
        return PoolTemplate(pool.key, number, revision.template)
