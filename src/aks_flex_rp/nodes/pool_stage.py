"""Has nodes download what a revision needs, before they are given it. Their configuration does not change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes.conflict_retry import retry_on_conflict
from aks_flex_rp.nodes.node_builder import NodeBuilder, validation_context
from aks_flex_rp.resource import rules
from aks_flex_rp.resource.validation import stay_in_pool
from aks_flex_rp.store.model import NextRevision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.validation import PoolTemplate
    from aks_flex_rp.store.model import Node


@dataclass(frozen=True)
class PoolStage:
    context: NodeContext
    cluster: ClusterInfo
    pool: str
    request: RequestContext
    allow_downgrade: bool = False

    async def stage(self, name: str, template: PoolTemplate) -> bool:
        """Sets what the machine of a node downloads ahead. Returns whether it has to.

        A node for which the revision is not valid is left as it is: the roll-out learns why when it is applied.
        """

        async def write(before: Node | None) -> bool:
            if before is None or before.pool is None or before.pool.name != self.pool:
                return False
            if before.pool.revision == template.revision:
                return False
            following = self._next(before, template)
            known = before.pool.next.revision if before.pool.next else 0
            if known != (following.revision if following else 0):
                await self._put(before, following)
            return following is not None

        return await self._retry(name, write)

    async def unstage(self, name: str, revision: int) -> None:
        """Removes what the machine of a node downloads ahead, unless it is for another revision."""

        async def write(before: Node | None) -> bool:
            following = before.pool.next if before and before.pool else None
            if before and following and following.revision == revision:
                await self._put(before, None)
            return False

        await self._retry(name, write)

    async def _retry(self, name: str, write: Callable[[Node | None], Awaitable[bool]]) -> bool:
        store, key = self.context.store, self.cluster.id.key
        return await retry_on_conflict(
            lambda: store.node(key, name.lower()), write, lambda: errors.concurrent_changes(name)
        )

    async def _put(self, before: Node, following: NextRevision | None) -> None:
        if before.pool is None:
            return
        etag = f'"{before.version}.{following.revision}"' if following else f'"{before.version}"'
        node = replace(before, pool=replace(before.pool, next=following), etag=etag)
        await self.context.store.put_node(node, before.etag)

    def _next(self, before: Node, template: PoolTemplate) -> NextRevision | None:
        context = validation_context(self.context, self.cluster, before, allow_downgrade=True)
        try:
            desired = replace(stay_in_pool(before.properties, template), allow_downgrade=self.allow_downgrade)
        except (ArmError, ValueError):
            return None
        if rules.check_rules(desired.properties, context):
            return None
        builder = NodeBuilder(self.context, self.cluster, self.request.caller)
        node = builder.build(before.name, desired, before, before.version + 1, before.join)
        return NextRevision(template.revision, node.config) if node.config != before.config else None
