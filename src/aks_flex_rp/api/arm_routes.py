"""Handles ARM requests: maps path and method to an operation, authorizes it, executes it, builds the response."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.errors import FlexError
from aks_flex_rp.api import http_messages
from aks_flex_rp.api.authorization import AuthorizedRequest, next_link, parse_target
from aks_flex_rp.api.pool_routes import EnrolmentRoutes, PoolRoutes, RolloutRoutes, pool_operations
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.nodes import queries
from aks_flex_rp.nodes.preconditions import if_none_match_matches
from aks_flex_rp.resource.view import machine_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_rp.api.authorization import ArmTarget, Authorizer, Handlers
    from aks_flex_rp.api.metrics import Metrics
    from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
    from aks_flex_rp.nodes.subsystem import NodeSubsystem
    from aks_flex_rp.rollouts.commands import RolloutCommands

log = logging.getLogger("aks_flex_rp.requests")


@dataclass(frozen=True)
class ArmRoutes:
    authorizer: Authorizer
    nodes: NodeSubsystem
    metrics: Metrics
    enrolments: EnrolmentCommands
    rollouts: RolloutCommands

    async def __call__(self, incoming: Incoming) -> Response:
        """Handles one request. Every response, errors included, has ARM's format and a request ID."""
        began, request_id = time.perf_counter(), http_messages.new_request_id()
        name, who, path = "unknown", "", ""
        try:
            where = parse_target(incoming.scope["path"])
            # Only logged for ARM paths: any other path may contain the secret of a mistyped config URL.
            path = incoming.scope["path"]
            operation = _operation(incoming.method, where)
            name = operation
            authorized = await self._authorize(incoming, where, operation, request_id)
            who = authorized.request.caller.name
            response = await self._operations[operation](authorized)
        except ArmError as error:
            response = http_messages.error_response(error)
        except FlexError as error:
            response = http_messages.error_response(http_messages.arm_error(error, request_id))
        http_messages.add_request_ids(response, incoming, request_id)
        self.metrics.requests.labels(name, str(response.status_code)).inc()
        self.metrics.seconds.labels(name).observe(time.perf_counter() - began)
        log_fields = {"request": request_id, "operation": name, "status": response.status_code, "caller": who}
        log_fields |= {"path": path, "source": http_messages.client_address(incoming)}
        log.info("%s %s", incoming.method, response.status_code, extra=log_fields)
        return response

    async def _authorize(
        self, incoming: Incoming, where: ArmTarget, operation: Operation, request_id: str
    ) -> AuthorizedRequest:
        text = incoming.scope["query_string"].decode("latin-1")
        query = {name.lower(): value for name, value in parse_qsl(text, keep_blank_values=True)}
        check_version(query)
        source = http_messages.client_address(incoming)
        caller = await self.authorizer.caller(incoming.headers.get("authorization", ""), source)
        request = await self.authorizer.admit(operation, where, caller, request_id, source)
        cluster = await self.authorizer.context.clusters.find(where.cluster.key)
        if cluster is None:
            raise errors.cluster_not_found(where.cluster)
        authorized = AuthorizedRequest(incoming, query, where, cluster, request)
        await self.nodes.keys.on_use(cluster, where.node, authorized.machine, request)
        if operation is Operation.REGENERATE_TOKEN or (operation is Operation.WRITE and authorized.flag("configUrl")):
            seeing = await self.authorizer.may_see_secrets(caller, where, own=request.acts_as_node)
            return replace(authorized, request=replace(request, may_see_secrets=seeing))
        return authorized

    @cached_property
    def _operations(self) -> Handlers:
        pools = PoolRoutes(self.nodes.commands)
        return {
            Operation.READ: self._get,
            Operation.LIST: self._list,
            Operation.WRITE: self._put,
            Operation.DELETE: self._delete,
            Operation.REGENERATE_TOKEN: self._regenerate,
            Operation.REPORT_STATUS: self._report,
            Operation.LIST_CREDENTIALS: self._credentials,
            Operation.ROTATE_KEY: self._rotate_key,
            Operation.REVOKE_KEY: self._revoke_key,
            **pools.operations,
            **EnrolmentRoutes(self.enrolments, pools.commands).operations,
            **RolloutRoutes(self.rollouts, pools).operations,
        }

    async def _get(self, request: AuthorizedRequest) -> Response:
        found, shown = await self.nodes.queries.get(request.cluster, request.target.node, request.request)
        if request.request.acts_as_node:
            if machine := request.machine:
                await self.nodes.reports.claims.on_report(found, machine, request.request)
            self.authorizer.poll_cache.record_seen(found.cluster, found.key, time.time())
            await self.nodes.reports.access_grants.try_ensure_access(request.cluster, found, request.request)
        etag, headers = found.etag, request.http_request.headers
        if if_none_match_matches(headers.get("if-none-match", ""), etag):
            return http_messages.json_response(304, headers={"ETag": etag})
        return http_messages.json_response(200, shown, {"ETag": etag})

    async def _list(self, request: AuthorizedRequest) -> Response:
        list_query = queries.parse_list_query(
            *(request.query.get(name) for name in ("$filter", "$top", "$skiptoken"))
        )
        found, after = await self.nodes.queries.list(request.cluster, list_query)
        document: dict[str, Any] = {"value": found}
        if after is not None:
            document["nextLink"] = next_link(request.http_request, after)
        return http_messages.json_response(200, document)

    async def _put(self, request: AuthorizedRequest) -> Response:
        url = request.flag("configUrl")
        body = await http_messages.read_json(request.http_request)
        written = await self.nodes.commands.put(
            request.cluster, request.target.node, body, request.preconditions, request.request, url=url
        )
        shown = self.nodes.queries.resource(request.cluster, written.node)
        if written.url:
            shown["properties"] |= written.url.document()
        return http_messages.json_response(201 if written.created else 200, shown, {"ETag": written.node.etag})

    async def _delete(self, request: AuthorizedRequest) -> Response:
        gone = await self.nodes.commands.delete(
            request.cluster, request.target.node, request.preconditions, request.request
        )
        return http_messages.json_response(204) if gone is None else http_messages.json_response(200, gone)

    async def _regenerate(self, request: AuthorizedRequest) -> Response:
        body = await http_messages.read_optional_json(request.http_request) or {}
        replacing = body.get("replaceMachine", False)
        if not isinstance(replacing, bool):
            raise errors.invalid("replaceMachine", "The value must be true or false.")
        if replacing:
            await self.authorizer.check_may_replace(request.request.caller, request.target)
        written = await self.nodes.commands.regenerate(
            request.cluster, request.target.node, request.request, replacing=replacing, machine=request.machine
        )
        await self.nodes.reports.access_grants.try_ensure_access(request.cluster, written.node, request.request)
        url = written.url.document() if written.url else {}
        bound = {"machine": machine_document(written.machine)} if written.machine else {}
        return http_messages.json_response(200, {"configVersion": str(written.node.version), **url, **bound})

    async def _report(self, request: AuthorizedRequest) -> Response:
        document = await http_messages.read_json(request.http_request)
        result = await self.nodes.reports.report(
            request.cluster, request.target.node, document, request.request, request.machine
        )
        return http_messages.json_response(200, result)

    async def _credentials(self, request: AuthorizedRequest) -> Response:
        return http_messages.json_response(
            200, await self.nodes.reports.credentials(request.cluster, request.target.node, request.request)
        )

    async def _rotate_key(self, request: AuthorizedRequest) -> Response:
        body = await http_messages.read_json(request.http_request)
        result = await self.nodes.keys.rotate(
            request.cluster, request.target.node, body, request.machine, request.request
        )
        return http_messages.json_response(200, result)

    async def _revoke_key(self, request: AuthorizedRequest) -> Response:
        result = await self.nodes.keys.revoke(request.cluster, request.target.node, request.request)
        if left := await self.nodes.keys.open_enrolment(request.cluster, request.target.node):
            result = {**result, "poolName": left.pool, "enrolmentName": left.key}
        return http_messages.json_response(200, result)


def check_version(query: Mapping[str, str]) -> None:
    version = query.get("api-version")
    if not version:
        message = f"The api-version query parameter (?api-version=) is required for all requests: {API_VERSION}."
        raise ArmError(400, "MissingApiVersionParameter", message)
    if version.lower() != API_VERSION:
        message = f"The api-version of the request is not supported. The supported api-versions are '{API_VERSION}'."
        raise ArmError(400, "InvalidApiVersionParameter", message)


def _operation(method: str, where: ArmTarget) -> Operation:
    allowed: dict[str, Operation] = {"GET": Operation.LIST}
    if where.pool:
        allowed = pool_operations(where.pool, where.action)
    elif where.action:
        allowed = {"POST": where.action}
    elif where.node:
        allowed = {"GET": Operation.READ, "PUT": Operation.WRITE, "DELETE": Operation.DELETE}
    if method not in allowed:
        raise errors.method_not_allowed(method, ", ".join(allowed))
    return allowed[method]
