"""Pages of pools: a list, and for each pool its template, revisions with differences, nodes, the apply form, and its
deletion after its name is entered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import rollout_view
from aks_flex_rp.dashboard.document_diff import changed_lines
from aks_flex_rp.dashboard.node_page import system
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import digits, redirect
from aks_flex_rp.dashboard.rollout_view import RolloutRow
from aks_flex_rp.nodes.pool_apply import PoolApply
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.pool_model import PoolCounts

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.document_diff import DiffLine
    from aks_flex_rp.dashboard.page import VisitedPool
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import ShownCluster
    from aks_flex_rp.nodes.pool_apply import ApplyResult
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


class PoolPages(DashboardPage):
    """Serves the pages of pools."""

    async def show_all(self, visit: PageRequest) -> Response:
        clusters = await self.scopes.clusters(visit.caller, Operation.READ_POOL)
        active = {(each.cluster, each.pool): RolloutRow(each) for each in await self.store.active_rollouts()}
        versions = await self.store.all_pool_versions()
        barred = {(each.cluster, each.pool, each.created): len(each.barred) for each in versions}
        rows = []
        for cluster in clusters:
            counts = await self.store.pool_counts(cluster.id.key)
            for each in await self.store.pools(cluster.id.key, limit=MAX_POOLS):
                about = (active.get((each.cluster, each.key)), barred.get((each.cluster, each.key, each.created), 0))
                rows.append(PoolRow(cluster, each, counts.get(each.key, PoolCounts()), *about))
        may_create = bool(await self.scopes.clusters(visit.caller, Operation.WRITE_POOL))
        return self.pages.show("pools", visit, rows=rows, clusters=clusters, may_create=may_create)

    async def show(self, visit: PageRequest) -> Response:
        return await self._page(visit, await self.pool(visit, Operation.READ_POOL))

    async def apply(self, visit: PageRequest) -> Response:
        """Applies the newest revision to all nodes, or to the node that the form names."""
        found = await self.pool(visit, Operation.APPLY_POOL)
        number = digits(visit.form.get("revision", ""), 15)
        if not number:
            raise ArmError(400, "InvalidRequestContent", "The form does not contain the number of a revision.")
        name = visit.form.get("node", "").strip()
        template = await self.pool_commands.template(found.pool, number)
        order = (found.pool, template, [name] if name else None, found.request)
        return await self._page(visit, found, await PoolApply(self.arm.nodes.commands).apply(found.cluster, *order))

    async def ask_delete(self, visit: PageRequest) -> Response:
        return await self._delete_form(visit, await self.pool(visit, Operation.DELETE_POOL))

    async def delete(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.DELETE_POOL)
        if visit.form.get("name", "").strip() != found.pool.key:
            return await self._delete_form(visit, found, 400, wrong=True)
        try:
            preconditions = Preconditions(if_match=visit.form.get("etag") or '""')
            await self.pool_commands.delete(found.cluster, found.pool.key, preconditions, found.request)
        except ArmError as error:
            if error.status not in {409, 412}:
                raise
            found = await self.pool(visit, Operation.DELETE_POOL)
            refused = error.message if error.status == 409 else ""
            return await self._delete_form(visit, found, 409, refused=refused, raced=not refused)
        return redirect("/ui/pools")

    async def _delete_form(
        self,
        visit: PageRequest,
        found: VisitedPool,
        status: int = 200,
        *,
        wrong: bool = False,
        refused: str = "",
        raced: bool = False,
    ) -> Response:
        pool = found.pool
        return self.pages.show(
            "pool_delete",
            visit,
            status=status,
            **found.about,
            counts=await self.store.count_pool(pool),
            enrolments=len(await self.store.enrolments(pool.cluster, pool.key, limit=MAX_ENROLMENTS)),
            typed=visit.form.get("name", "") if wrong else "",
            wrong=wrong,
            refused=refused,
            raced=raced,
            system=system(pool.system),
        )

    async def _page(self, visit: PageRequest, found: VisitedPool, result: ApplyResult | None = None) -> Response:
        pool = found.pool
        nodes = await self.store.pool_nodes(pool.cluster, pool.key, limit=MAX_NODES)
        revisions = await self.store.pool_revisions(pool, ALL_REVISIONS, MAX_REVISIONS)
        operations = {
            "may_apply": Operation.APPLY_POOL,
            "may_edit": Operation.WRITE_POOL,
            "may_roll_out": Operation.WRITE_ROLLOUT,
            "may_delete": Operation.DELETE_POOL,
        }
        return self.pages.show(
            "pool",
            visit,
            **found.about,
            counts=await self.store.count_pool(pool),
            revisions=[RevisionRow(each, tuple(changed_lines(each.changes))) for each in revisions],
            nodes=nodes.nodes,
            more_nodes=nodes.after is not None,
            rollouts=await rollout_view.pool_rollouts(self.store, pool),
            result=_result(result) if result else None,
            pending={each.key for each in nodes.nodes if each.pool and each.pool.revision != pool.number},
            **{name: await self.scopes.may(visit, each, found.cluster.id) for name, each in operations.items()},
        )


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
