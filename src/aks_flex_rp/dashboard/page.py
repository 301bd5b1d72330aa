"""What pages have in common: the renderer, authorization, the operations of the API, and the resource in the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.pool_operations import PoolCommands

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.api.arm_routes import ArmRoutes
    from aks_flex_rp.api.authorization import ArmTarget
    from aks_flex_rp.auth.roles import Operation
    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool


@dataclass(frozen=True)
class VisitedNode:
    """The node in the path of a page, on which the user is permitted an operation."""

    where: ArmTarget
    cluster: ClusterInfo
    request: RequestContext
    node: Node
    shown: dict[str, Any]  # as the API returns it

    @property
    def page(self) -> str:
        return ShownCluster(self.cluster.id).node(self.node.name)

    @property
    def about(self) -> dict[str, Any]:
        """The template variables of every page below the page of a node."""
        return {"node": self.node, "cluster": self.cluster.id, "here_is": self.page}


@dataclass(frozen=True)
class VisitedPool:
    """The pool in the path of a page, on which the user is permitted an operation."""

    cluster: ClusterInfo
    pool: Pool
    request: RequestContext

    @property
    def shown_cluster(self) -> ShownCluster:
        return ShownCluster(self.cluster.id)

    @property
    def page(self) -> str:
        return self.shown_cluster.pool(self.pool.key)

    @property
    def about(self) -> dict[str, Any]:
        """The template variables of every page of a pool."""
        return {"cluster": self.shown_cluster, "pool": self.pool}


@dataclass(frozen=True)
class DashboardPage:
    pages: PageRenderer
    scopes: DashboardScopes
    arm: ArmRoutes

    @property
    def context(self) -> NodeContext:
        return self.arm.nodes.commands.context

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def pool_commands(self) -> PoolCommands:
        return PoolCommands(self.context)

    async def nowhere(self, visit: PageRequest, what: str) -> Response:
        """Says why the user cannot create anything: no cluster exists, or none in which the user may."""
        some = bool(await self.scopes.clusters(visit.caller))
        return self.pages.show("create_nowhere", visit, some=some, what=what)

    async def node(self, visit: PageRequest, operation: Operation) -> VisitedNode:
        """Returns the node in the path. Raises ArmError if the user is not permitted the operation."""
        where, cluster, request = await self.scopes.node(visit, operation)
        return VisitedNode(where, cluster, request, *await self.arm.nodes.queries.get(cluster, where.node))

    async def pool(self, visit: PageRequest, operation: Operation) -> VisitedPool:
        """Returns the pool in the path. Raises ArmError if the user is not permitted the operation."""
        where, cluster, request = await self.scopes.pool(visit, operation)
        pool = await self.pool_commands.get(cluster, where.pool.name if where.pool else "")
        return VisitedPool(cluster, pool, request)
