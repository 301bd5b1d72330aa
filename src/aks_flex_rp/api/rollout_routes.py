"""Operations of roll-outs: reads and writes a request, and builds the ARM response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aks_flex_node.api.rollout_options import invalid_name
from aks_flex_rp.api import http_messages
from aks_flex_rp.arm import errors
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.rollouts.states import NodeState
from aks_flex_rp.rollouts.view import node_entry, rollout_resource
from aks_flex_rp.store.rollout_model import Heartbeat

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.api.authorized_request import AuthorizedRequest, Handlers
    from aks_flex_rp.api.pool_routes import PoolRoutes
    from aks_flex_rp.rollouts.commands import RolloutCommands
    from aks_flex_rp.store.rollout_model import StoredRollout

NODES_PER_PAGE = 500
AFTER_ALL = 2**62  # more than the number of any roll-out


class NodeQuery(WireModel):
    state: Annotated[str, Field(pattern=f"^({'|'.join(each.value for each in NodeState)})?$")] = ""
    wave: Annotated[int, Field(ge=0, le=1000)] = 0  # from 1; 0 for all
    after: Annotated[str, Field(max_length=63, pattern=r"^[ -~]*$")] = ""  # of an earlier response


class Revision(WireModel):
    revision: Annotated[int, Field(ge=1)]


class Approval(WireModel):
    gate: str = ""


def check_name(name: str) -> None:
    """Raises ArmError if a roll-out cannot have this name."""
    if reason := invalid_name(name):
        raise errors.ArmError(400, "InvalidResourceName", f"'{name[:80]}' {reason}", "rolloutName")


@dataclass(frozen=True)
class RolloutRoutes:
    commands: RolloutCommands
    pools: PoolRoutes

    @property
    def operations(self) -> Handlers:
        return {Operation.READ_ROLLOUT: self._read, Operation.WRITE_ROLLOUT: self._write}

    async def _read(self, request: AuthorizedRequest) -> Response:
        target = request.pool
        if not target.rollout:
            return await self._list(request)
        found = await self.commands.get(request.cluster, target.name, target.rollout)
        if target.part:
            return await self._nodes(request, found)
        return await self._response(request, found)

    async def _list(self, request: AuthorizedRequest) -> Response:
        store, pool = self.commands.context.store, await self._existing_pool(request)
        query = request.page_query
        before = int(query.after) if query.after.isdecimal() and len(query.after) < 19 else AFTER_ALL
        found = await store.rollouts(request.cluster.key, pool, before, query.top + 1)
        shown = [
            rollout_resource(each, request.cluster.id, await store.count_states(each)) for each in found[: query.top]
        ]
        return request.page(shown, str(found[query.top - 1].number) if len(found) > query.top else None)

    async def _existing_pool(self, request: AuthorizedRequest) -> str:
        if await self.commands.context.store.pool(request.cluster.key, request.pool.name) is None:
            raise errors.pool_not_found(request.cluster.id, request.pool.name)
        return request.pool.name

    async def _nodes(self, request: AuthorizedRequest, rollout: StoredRollout) -> Response:
        body = await http_messages.read_optional_json(request.http_request)
        query = NodeQuery.read(body)
        store = self.commands.context.store
        found = await store.rollout_node_page(
            rollout, query.after, NODES_PER_PAGE + 1, state=query.state, wave=query.wave - 1
        )
        beats = await store.heartbeats(rollout.cluster, rollout.pool)
        shown = [
            node_entry(each, offline=beats.get(each.node, Heartbeat()).silent) for each in found[:NODES_PER_PAGE]
        ]
        more = {"after": found[NODES_PER_PAGE - 1].node} if len(found) > NODES_PER_PAGE else {}
        return http_messages.json_response(200, {"value": shown, **more})

    async def _write(self, request: AuthorizedRequest) -> Response:
        target, cluster = request.pool, request.cluster
        if request.http_request.method == "PUT":
            return await self._create(request)
        if request.http_request.method == "DELETE":
            deleted = await self.commands.delete(cluster, target.name, target.rollout, request.request)
            return http_messages.json_response(200 if deleted else 204)
        body = await http_messages.read_optional_json(request.http_request)
        if not target.rollout:
            revision = Revision.read(body).revision
            pool = await self.commands.allow_revision(request.cluster, request.pool.name, revision, request.request)
            return http_messages.json_response(200, await self.pools.shown(request, pool))
        if body and target.part != "approve":
            raise errors.invalid_request(errors.unknown_properties(body, ()))
        gate = Approval.read(body).gate
        await self._existing_pool(request)
        done = await self.commands.order(cluster, target.name, target.rollout, target.part, request.request, gate)
        return await self._response(request, done)

    async def _create(self, request: AuthorizedRequest) -> Response:
        check_name(request.pool.rollout)
        body = await http_messages.read_json(request.http_request)
        made, created = await self.commands.create(
            request.cluster, request.pool.name, request.pool.rollout, body, request.request
        )
        return await self._response(request, made, 201 if created else 200)

    async def _response(self, request: AuthorizedRequest, rollout: StoredRollout, status: int = 200) -> Response:
        counts = await self.commands.context.store.count_states(rollout)
        shown = rollout_resource(rollout, request.cluster.id, counts)
        return http_messages.json_response(status, shown, {"ETag": rollout.etag})
