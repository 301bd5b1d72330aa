"""Operations of pools: reads and writes a request, and builds the ARM response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from aks_flex_rp.api import http_messages
from aks_flex_rp.api.enrolment_routes import enrolment_operations
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.nodes.pool_apply import ApplyOptions, PoolApply
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS, PoolCommands
from aks_flex_rp.nodes.pool_templates import PoolTemplates
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.resource.view import pool_resource, revision_resource
from aks_flex_rp.store.pool_model import PoolCounts

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.api.authorization import PoolTarget
    from aks_flex_rp.api.authorized_request import AuthorizedRequest, Handlers
    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.store.pool_model import Pool


class ApplyRequest(WireModel):
    revision: Annotated[int, Field(ge=1, lt=ALL_REVISIONS)] | None = None  # the newest if None
    node_names: list[str] | None = None  # all nodes of the pool if None
    allow_downgrade: bool = False
    override_rollout: bool = False


LIST_NODES = "listnodes"


def rollout_operations(target: PoolTarget) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if not target.rollout:
        return {"GET": Operation.READ_ROLLOUT}
    if target.part == LIST_NODES:
        return {"POST": Operation.READ_ROLLOUT}
    if target.part:
        return {"POST": Operation.WRITE_ROLLOUT}
    return {"GET": Operation.READ_ROLLOUT, "PUT": Operation.WRITE_ROLLOUT, "DELETE": Operation.WRITE_ROLLOUT}


def pool_operations(target: PoolTarget, action: Operation | None) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if action:
        return {"POST": action}
    if target.enrolments:
        return enrolment_operations(target)
    if target.rollouts:
        return rollout_operations(target)
    if not target.name or target.revisions:
        return {"GET": Operation.READ_POOL}
    return {"GET": Operation.READ_POOL, "PUT": Operation.WRITE_POOL, "DELETE": Operation.DELETE_POOL}


@dataclass(frozen=True)
class PoolRoutes:
    nodes: NodeCommands

    @property
    def commands(self) -> PoolCommands:
        return PoolCommands(self.nodes.context)

    @property
    def operations(self) -> Handlers:
        return {
            Operation.READ_POOL: self._read,
            Operation.WRITE_POOL: self._put,
            Operation.DELETE_POOL: self._delete,
            Operation.APPLY_POOL: self._apply,
        }

    async def _read(self, request: AuthorizedRequest) -> Response:
        target = request.pool
        if not target.name:
            query = request.page_query
            store, cluster = self.nodes.context.store, request.cluster.id
            found = await store.pools(cluster.key, query.after, query.top + 1)
            counts = await store.pool_counts(cluster.key)
            shown = [pool_resource(each, cluster, counts.get(each.key, PoolCounts())) for each in found[: query.top]]
            return request.page(shown, found[query.top - 1].key if len(found) > query.top else None)
        pool = await self.commands.get(request.cluster, target.name)
        if target.revision is not None:
            revision = await self.commands.revision(pool, target.revision)
            return http_messages.json_response(200, revision_resource(revision, request.cluster.id))
        if target.revisions:
            return await self._list_revisions(request)
        return http_messages.json_response(200, await self.shown(request, pool), {"ETag": pool.etag})

    async def shown(self, request: AuthorizedRequest, pool: Pool) -> dict[str, Any]:
        store = self.nodes.context.store
        active = await store.active_rollout(pool.cluster, pool.key)
        counts, versions = await self.commands.counts(pool), await store.pool_versions(pool)
        return pool_resource(pool, request.cluster.id, counts, versions, active.key if active else "")

    async def _list_revisions(self, request: AuthorizedRequest) -> Response:
        query = request.page_query
        pool = await self.commands.get(request.cluster, request.pool.name)
        before = int(query.after) if query.after.isdecimal() and len(query.after) < 16 else ALL_REVISIONS
        found = await self.nodes.context.store.pool_revisions(pool, before, query.top + 1)
        shown = [revision_resource(each, request.cluster.id) for each in found[: query.top]]
        return request.page(shown, str(found[query.top - 1].number) if len(found) > query.top else None)

    async def _put(self, request: AuthorizedRequest) -> Response:
        body = await http_messages.read_json(request.http_request)
        pool, created = await self.commands.put(
            request.cluster, request.pool.name, body, request.preconditions, request.request
        )
        shown = await self.shown(request, pool)
        return http_messages.json_response(201 if created else 200, shown, {"ETag": pool.etag})

    async def _delete(self, request: AuthorizedRequest) -> Response:
        deleted = await self.commands.delete(
            request.cluster, request.pool.name, request.preconditions, request.request
        )
        return http_messages.json_response(200 if deleted else 204)

    async def _apply(self, request: AuthorizedRequest) -> Response:
        asked = ApplyRequest.read(await http_messages.read_optional_json(request.http_request))
        if asked.override_rollout and len(asked.node_names or ()) != 1:
            problem = Problem("overrideRollout", "Only one node can be taken out of a roll-out. Name it.")
            raise errors.invalid_request([problem])
        by = request.request.caller.name if asked.override_rollout else ""
        pool = await self.commands.get(request.cluster, request.pool.name)
        template = await PoolTemplates(self.nodes.context.store).of_revision(pool, asked.revision or pool.number)
        result = await PoolApply(self.nodes).apply(
            request.cluster,
            pool,
            template,
            asked.node_names,
            request.request,
            ApplyOptions(asked.allow_downgrade, by),
        )
        refused = [
            {"name": name, **error.document()} for name, error in sorted(result.refused, key=lambda each: each[0])
        ]
        shown = {
            "revision": result.revision,
            "applied": sorted(result.applied),
            "unchanged": sorted(result.unchanged),
            "refused": refused,
        }
        return http_messages.json_response(200, shown)
