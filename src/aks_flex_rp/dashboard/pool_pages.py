"""Pages of pools: a list, and for each pool its template, revisions with differences, nodes, the apply form, and its
deletion after its name is entered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_request, rollout_overview
from aks_flex_rp.dashboard.node_page import system
from aks_flex_rp.dashboard.pool_form import template_lines
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.pool_apply import PoolApply
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS, PoolCommands
from aks_flex_rp.nodes.pool_templates import PoolTemplates
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.pool_model import PoolCounts

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.document_diff import DiffLine
    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.rollout_overview import RolloutRow
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.nodes.pool_apply import ApplyResult
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool, PoolRevision

MAX_POOLS = 1000  # of a cluster on the list
MAX_REVISIONS = 50
MAX_NODES = 200
MAX_ENROLMENTS = 200
MAX_NAMED = 20  # nodes in the result of an apply


@dataclass(frozen=True)
class PoolRow:
    """A pool in the list."""

    cluster: ShownCluster
    pool: Pool
    counts: PoolCounts
    rollout: RolloutRow | None  # the active one
    barred: int  # revisions


@dataclass(frozen=True)
class RevisionRow:
    """A revision with what it changed."""

    revision: PoolRevision
    lines: tuple[DiffLine, ...]


@dataclass(frozen=True)
class PoolPages:
    """Serves the pages of pools."""

    pages: PageRenderer
    scopes: DashboardScopes
    commands: NodeCommands

    @property
    def pool_commands(self) -> PoolCommands:
        return PoolCommands(self.commands.context)

    async def show_all(self, page_request: PageRequest) -> Response:
        store, rows = self.commands.context.store, []
        clusters = await self.scopes.clusters(page_request.caller, Operation.READ_POOL)
        rollouts = await rollout_overview.fleet_rollouts(store)
        for cluster in clusters:
            counts = await store.pool_counts(cluster.id.key)
            found = await store.pools(cluster.id.key, limit=MAX_POOLS)
            rows += [
                PoolRow(
                    cluster,
                    each,
                    counts.get(each.key, PoolCounts()),
                    rollouts.of(each),
                    rollouts.barred_of(each),
                )
                for each in found
            ]
        may_create = bool(await self.scopes.clusters(page_request.caller, Operation.WRITE_POOL))
        return self.pages.show("pools", page_request, rows=rows, clusters=clusters, may_create=may_create)

    async def show(self, page_request: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(page_request, Operation.READ_POOL)
        return await self._page(page_request, cluster, pool)

    async def apply(self, page_request: PageRequest) -> Response:
        """Applies the newest revision to all nodes, or to the node that the form names."""
        cluster, pool, request = await self._pool(page_request, Operation.APPLY_POOL)
        number = page_request.form.get("revision", "")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            raise ArmError(400, "InvalidRequestContent", "The form does not contain the number of a revision.")
        name = page_request.form.get("node", "").strip()
        template = await PoolTemplates(self.commands.context.store).of_revision(pool, int(number))
        result = await PoolApply(self.commands).apply(cluster, pool, template, [name] if name else None, request)
        return await self._page(page_request, cluster, pool, result)

    async def ask_delete(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit, Operation.DELETE_POOL)
        return await self._delete_form(visit, cluster, pool)

    async def delete(self, visit: PageRequest) -> Response:
        cluster, pool, request = await self._pool(visit, Operation.DELETE_POOL)
        if visit.form.get("name", "").strip() != pool.key:
            return await self._delete_form(visit, cluster, pool, 400, wrong=True)
        try:
            preconditions = Preconditions(if_match=visit.form.get("etag") or '""')
            await self.pool_commands.delete(cluster, pool.key, preconditions, request)
        except ArmError as error:
            if error.status not in {409, 412}:
                raise
            _, pool, _ = await self._pool(visit, Operation.DELETE_POOL)
            refused = error.message if error.status == 409 else ""
            return await self._delete_form(visit, cluster, pool, 409, refused=refused, raced=not refused)
        return page_request.redirect("/ui/pools")

    async def _delete_form(
        self,
        visit: PageRequest,
        cluster: ClusterInfo,
        pool: Pool,
        status: int = 200,
        *,
        wrong: bool = False,
        refused: str = "",
        raced: bool = False,
    ) -> Response:
        store = self.commands.context.store
        return self.pages.show(
            "pool_delete",
            visit,
            status=status,
            cluster=ShownCluster(cluster.id, 0, cluster.id.name),
            pool=pool,
            counts=await self.pool_commands.counts(pool),
            enrolments=len(await store.enrolments(pool.cluster, pool.key, limit=MAX_ENROLMENTS)),
            typed=visit.form.get("name", "") if wrong else "",
            wrong=wrong,
            refused=refused,
            raced=raced,
            system=system(pool.system),
        )

    async def _pool(
        self, page_request: PageRequest, operation: Operation
    ) -> tuple[ClusterInfo, Pool, RequestContext]:
        where, known, request = await self.scopes.pool(page_request, operation)
        return known, await self.pool_commands.get(known, where.pool.name if where.pool else ""), request

    async def _page(
        self, page_request: PageRequest, cluster: ClusterInfo, pool: Pool, result: ApplyResult | None = None
    ) -> Response:
        store, shown = self.commands.context.store, ShownCluster(cluster.id, 0, cluster.id.name)
        found = await store.pool_nodes(pool.cluster, pool.key, limit=MAX_NODES)
        revisions = await store.pool_revisions(pool, ALL_REVISIONS, MAX_REVISIONS)
        return self.pages.show(
            "pool",
            page_request,
            cluster=shown,
            pool=pool,
            counts=await self.pool_commands.counts(pool),
            template=json.dumps(pool.template, indent=2, ensure_ascii=False),
            revisions=[_row(each) for each in revisions],
            nodes=found.nodes,
            more_nodes=found.after is not None,
            may_apply=await self.scopes.may(page_request, Operation.APPLY_POOL, cluster.id),
            may_edit=await self.scopes.may(page_request, Operation.WRITE_POOL, cluster.id),
            rollouts=await rollout_overview.pool_rollouts(store, pool),
            may_roll_out=await self.scopes.may(page_request, Operation.WRITE_ROLLOUT, cluster.id),
            may_delete=await self.scopes.may(page_request, Operation.DELETE_POOL, cluster.id),
            result=_result(result) if result else None,
            pending=_pending(found.nodes, pool),
        )


def _row(revision: PoolRevision) -> RevisionRow:
    return RevisionRow(revision, tuple(template_lines(revision.changes)))


def _pending(nodes: tuple[Node, ...], pool: Pool) -> frozenset[str]:
    return frozenset(each.key for each in nodes if each.pool and each.pool.revision != pool.number)


def _result(result: ApplyResult) -> dict[str, Any]:
    refused = sorted(result.refused, key=lambda each: each[0])
    messages = [
        (name, " ".join([error.message, *(each.message for each in error.details)])) for name, error in refused
    ]
    return {
        "revision": result.revision,
        "applied": len(result.applied),
        "unchanged": len(result.unchanged),
        "refused": len(refused),
        "messages": messages[:MAX_NAMED],
    }
