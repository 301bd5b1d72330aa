"""Operations of enrolments: reads and writes a request, and builds the ARM response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from aks_flex_rp.api import http_messages
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.resource.enrolment_rules import enrolment_resource, machine_resource
from aks_flex_rp.resource.models import WireModel

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.api.authorization import PoolTarget
    from aks_flex_rp.api.authorized_request import AuthorizedRequest, Handlers
    from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
    from aks_flex_rp.nodes.pool_operations import PoolCommands
    from aks_flex_rp.store.pool_model import Enrolment


class MachineQuery(WireModel):
    after: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""  # of an earlier response


class Decision(WireModel):
    fingerprint: str  # of the key of a machine


def enrolment_operations(target: PoolTarget) -> dict[str, Operation]:
    """Returns the operations of a path by method."""
    if not target.enrolment:
        return {"GET": Operation.READ_ENROLMENT, "POST": Operation.WRITE_ENROLMENT}
    if not target.part:
        return {"GET": Operation.READ_ENROLMENT}
    if target.part == "listmachines":
        return {"POST": Operation.READ_ENROLMENT}
    return {"POST": Operation.WRITE_ENROLMENT}


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
        if not target.enrolment:
            return await self._list(request)
        found = await self.commands.get(request.cluster, target.name, target.enrolment)
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
        return request.page(shown, found[query.top - 1].key if len(found) > query.top else None)

    async def _write(self, request: AuthorizedRequest) -> Response:
        target, cluster = request.pool, request.cluster
        if not target.enrolment:
            return await self._create(request)
        if target.part == "revoke":
            revoked = await self.commands.revoke(cluster, target.name, target.enrolment, request.request)
            return http_messages.json_response(200, await self._shown(request, revoked))
        shown = Decision.read(await http_messages.read_json(request.http_request)).fingerprint
        machine = await self.commands.decide(
            cluster, target.name, target.enrolment, shown, request.request, approve=target.part == "approve"
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
