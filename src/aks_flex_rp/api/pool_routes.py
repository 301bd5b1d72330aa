"""Operations of pools, their enrolments and their roll-outs: reads and writes a request, and builds the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from aks_flex_node.api.rollout_options import invalid_name
from aks_flex_rp.api import http_messages
from aks_flex_rp.arm import errors
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.nodes.pool_apply import ApplyOptions, PoolApply
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS, PoolCommands
from aks_flex_rp.resource.enrolment_rules import enrolment_resource, machine_resource
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.resource.view import pool_resource, revision_resource
from aks_flex_rp.rollouts.states import NodeState
from aks_flex_rp.rollouts.view import node_entry, rollout_resource
from aks_flex_rp.store.pool_model import Heartbeat, PoolCounts

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.api.authorization import AuthorizedRequest, Handlers, PoolTarget
    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
    from aks_flex_rp.rollouts.commands import RolloutCommands
    from aks_flex_rp.store.pool_model import Enrolment, Pool, StoredRollout


NODES_PER_PAGE = 500


class ApplyRequest(WireModel):
    revision: Annotated[int, Field(ge=1, lt=ALL_REVISIONS)] | None = None  # the newest if None
    node_names: list[str] | None = None  # all nodes of the pool if None
    allow_downgrade: bool = False
    override_rollout: bool = False


class MachineQuery(WireModel):
    after: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""  # of an earlier response


class Decision(WireModel):
    fingerprint: str  # of the key of a machine


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


def _number(after: str) -> int:
    """Returns the number of the last revision or roll-out of the previous page, or one above all of them."""
    return int(after) if after.isdecimal() and len(after) < 19 else ALL_REVISIONS


def enrolment_operations(target: PoolTarget) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if not target.item:
        return {"GET": Operation.READ_ENROLMENT, "POST": Operation.WRITE_ENROLMENT}
    if target.part:
        return {"POST": Operation.READ_ENROLMENT if target.part == "listmachines" else Operation.WRITE_ENROLMENT}
    return {"GET": Operation.READ_ENROLMENT}


def rollout_operations(target: PoolTarget) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if not target.item:
        return {"GET": Operation.READ_ROLLOUT}
    if target.part:
        return {"POST": Operation.READ_ROLLOUT if target.part == "listnodes" else Operation.WRITE_ROLLOUT}
    return {"GET": Operation.READ_ROLLOUT, "PUT": Operation.WRITE_ROLLOUT, "DELETE": Operation.WRITE_ROLLOUT}


def pool_operations(target: PoolTarget, action: Operation | None) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if action:
        return {"POST": action}
    if target.collection == "enrolments":
        return enrolment_operations(target)
    if target.collection == "rollouts":
        return rollout_operations(target)
    if not target.name or target.collection:
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
            return request.page(shown, found, lambda last: last.key)
        pool = await self.commands.get(request.cluster, target.name)
        if target.item:
            revision = await self.commands.revision(pool, int(target.item))
            return http_messages.json_response(200, revision_resource(revision, request.cluster.id))
        if target.collection:
            return await self._list_revisions(request)
        return http_messages.json_response(200, await self.shown(request, pool), {"ETag": pool.etag})

    async def shown(self, request: AuthorizedRequest, pool: Pool) -> dict[str, Any]:
        store = self.nodes.context.store
        active = await store.active_rollout(pool.cluster, pool.key)
        counts, versions = await store.count_pool(pool), await store.pool_versions(pool)
        return pool_resource(pool, request.cluster.id, counts, versions, active.key if active else "")

    async def _list_revisions(self, request: AuthorizedRequest) -> Response:
        query = request.page_query
        pool = await self.commands.get(request.cluster, request.pool.name)
        found = await self.nodes.context.store.pool_revisions(pool, _number(query.after), query.top + 1)
        shown = [revision_resource(each, request.cluster.id) for each in found[: query.top]]
        return request.page(shown, found, lambda last: str(last.number))

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
            raise errors.invalid("overrideRollout", "Only one node can be taken out of a roll-out. Name it.")
        by = request.request.caller.name if asked.override_rollout else ""
        pool = await self.commands.get(request.cluster, request.pool.name)
        template = await self.commands.template(pool, asked.revision or pool.number)
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


@dataclass(frozen=True)
class EnrolmentRoutes:
    commands: EnrolmentCommands
    pools: PoolCommands

    @property
    def operations(self) -> Handlers:
        return {
            Operation.READ_ENROLMENT: self._read,
            Operation.WRITE_ENROLMENT: self._write,
            Operation.RELEASE: self._release,
        }

    async def _read(self, request: AuthorizedRequest) -> Response:
        target = request.pool
        if not target.item:
            return await self._list(request)
        found = await self.commands.get(request.cluster, target.name, target.item)
        if target.part:
            query = MachineQuery.read(await http_messages.read_optional_json(request.http_request))
            page = await self.commands.machines(found, query.after)
            more = {"after": page.after} if page.after else {}
            shown = [machine_resource(each) for each in page.machines]
            return http_messages.json_response(200, {"value": shown, **more})
        return http_messages.json_response(200, await self._shown(request, found))

    async def _list(self, request: AuthorizedRequest) -> Response:
        pool = await self.pools.get(request.cluster, request.pool.name)
        query = request.page_query
        store = self.commands.context.store
        found = await store.enrolments(pool.cluster, pool.key, query.after, query.top + 1)
        shown = [await self._shown(request, each) for each in found[: query.top]]
        return request.page(shown, found, lambda last: last.key)

    async def _write(self, request: AuthorizedRequest) -> Response:
        target, cluster = request.pool, request.cluster
        if not target.item:
            return await self._create(request)
        if target.part == "revoke":
            revoked = await self.commands.revoke(cluster, target.name, target.item, request.request)
            return http_messages.json_response(200, await self._shown(request, revoked))
        shown = Decision.read(await http_messages.read_json(request.http_request)).fingerprint
        machine = await self.commands.decide(
            cluster, target.name, target.item, shown, request.request, approve=target.part == "approve"
        )
        return http_messages.json_response(200, machine_resource(machine))

    async def _create(self, request: AuthorizedRequest) -> Response:
        body = await http_messages.read_json(request.http_request)
        pool = await self.pools.get(request.cluster, request.pool.name)
        made, url = await self.commands.create(request.cluster, pool, body, request.request)
        shown = await self._shown(request, made)
        shown["properties"]["enrolmentUrl"] = url
        return http_messages.json_response(200, shown)

    async def _release(self, request: AuthorizedRequest) -> Response:
        machine = await self.commands.release(request.cluster, request.target.node, request.request)
        return http_messages.json_response(200, machine_resource(machine))

    async def _shown(self, request: AuthorizedRequest, enrolment: Enrolment) -> dict[str, Any]:
        waiting = await self.commands.waiting(enrolment)
        return enrolment_resource(enrolment, request.cluster.id, self.commands.context.now(), waiting)


@dataclass(frozen=True)
class RolloutRoutes:
    commands: RolloutCommands
    pools: PoolRoutes

    @property
    def operations(self) -> Handlers:
        return {Operation.READ_ROLLOUT: self._read, Operation.WRITE_ROLLOUT: self._write}

    async def _read(self, request: AuthorizedRequest) -> Response:
        target = request.pool
        if not target.item:
            return await self._list(request)
        found = await self.commands.get(request.cluster, target.name, target.item)
        if target.part:
            return await self._nodes(request, found)
        return await self._response(request, found)

    async def _list(self, request: AuthorizedRequest) -> Response:
        store, pool = self.commands.context.store, await self._existing_pool(request)
        query = request.page_query
        found = await store.rollouts(request.cluster.key, pool, _number(query.after), query.top + 1)
        shown = [
            rollout_resource(each, request.cluster.id, await store.count_states(each)) for each in found[: query.top]
        ]
        return request.page(shown, found, lambda last: str(last.number))

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
            deleted = await self.commands.delete(cluster, target.name, target.item, request.request)
            return http_messages.json_response(200 if deleted else 204)
        body = await http_messages.read_optional_json(request.http_request)
        if not target.item:
            revision = Revision.read(body).revision
            pool = await self.commands.allow_revision(request.cluster, request.pool.name, revision, request.request)
            return http_messages.json_response(200, await self.pools.shown(request, pool))
        if body and target.part != "approve":
            raise errors.invalid_request(errors.unknown_properties(body, ()))
        gate = Approval.read(body).gate
        await self._existing_pool(request)
        done = await self.commands.order(cluster, target.name, target.item, target.part, request.request, gate)
        return await self._response(request, done)

    async def _create(self, request: AuthorizedRequest) -> Response:
        check_name(request.pool.item)
        body = await http_messages.read_json(request.http_request)
        made, created = await self.commands.create(
            request.cluster, request.pool.name, request.pool.item, body, request.request
        )
        return await self._response(request, made, 201 if created else 200)

    async def _response(self, request: AuthorizedRequest, rollout: StoredRollout, status: int = 200) -> Response:
        counts = await self.commands.context.store.count_states(rollout)
        shown = rollout_resource(rollout, request.cluster.id, counts)
        return http_messages.json_response(status, shown, {"ETag": rollout.etag})
