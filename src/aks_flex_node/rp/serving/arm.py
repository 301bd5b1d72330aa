"""ARM's requests: a path and a method become an operation, is let in, is done, and is answered."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from aks_flex_node.errors import FlexError
from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.errors import API_VERSION, ArmError
from aks_flex_node.rp.nodes import reading
from aks_flex_node.rp.nodes.writing import Guard, none_match
from aks_flex_node.rp.serving import requests
from aks_flex_node.rp.serving.doors import target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_node.rp.auth.roles import Operation
    from aks_flex_node.rp.nodes.around import Known, Request
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.nodes.reporting import Reporting
    from aks_flex_node.rp.nodes.writing import Writing
    from aks_flex_node.rp.serving.doors import Doors, Target
    from aks_flex_node.rp.serving.metrics import Metrics

log = logging.getLogger("aks_flex_node.rp.requests")


@dataclass(frozen=True)
class Asked:
    """One request, let in."""

    incoming: Incoming
    query: Mapping[str, str]
    target: Target
    cluster: Known
    request: Request

    @property
    def guard(self) -> Guard:
        headers = self.incoming.headers
        return Guard(headers.get("if-match", ""), headers.get("if-none-match", ""), self.flag("allowDowngrade"))

    def flag(self, name: str) -> bool:
        text = self.query.get(name.lower(), "false").lower()
        if text not in {"true", "false"}:
            raise ArmError(400, "InvalidQueryParameterValue", "The value must be true or false.", name)
        return text == "true"


@dataclass(frozen=True)
class Arm:
    doors: Doors
    writing: Writing
    reading: Reading
    reporting: Reporting
    metrics: Metrics

    async def __call__(self, incoming: Incoming) -> Response:
        """Whatever happens, there is an answer in ARM's shape with the request's id."""
        began, request_id = time.perf_counter(), requests.fresh_id()
        name, who, path = "unknown", "", ""
        try:
            where = target(incoming.url.path)
            path = incoming.url.path  # of what is ours; any other may be a config URL with something wrong about it
            operation = _operation(incoming.method, where)
            name = operation
            asked = await self._let_in(incoming, where, operation, request_id)
            who = asked.request.caller.name
            response = await self._do(operation, asked)
        except ArmError as error:
            response = requests.refusal(error)
        except FlexError as error:
            response = requests.refusal(requests.failure(error, request_id))
        for header, value in requests.returned_ids(incoming, request_id).items():
            response.headers[header] = value
        self._count(name, response.status_code, time.perf_counter() - began)
        said = {"request": request_id, "operation": name, "status": response.status_code, "caller": who}
        said |= {"path": path, "source": requests.source(incoming)}
        log.info("%s %s", incoming.method, response.status_code, extra=said)
        return response

    async def _let_in(self, incoming: Incoming, where: Target, operation: Operation, request_id: str) -> Asked:
        query = {name.lower(): value for name, value in parse_qsl(incoming.url.query, keep_blank_values=True)}
        check_version(query)
        caller = await self.doors.caller(incoming.headers.get("authorization", ""))
        request = await self.doors.admit(operation, where, caller, request_id, requests.source(incoming))
        cluster = await self.doors.shop.clusters.find(where.cluster.key)
        if cluster is None:
            raise errors.no_cluster(where.cluster)
        asked = Asked(incoming, query, where, cluster, request)
        if operation == "regenerateToken" or (operation == "write" and asked.flag("configUrl")):
            seeing = await self.doors.may_see_secrets(caller, where)
            return replace(asked, request=replace(request, may_see_secrets=seeing))
        return asked

    async def _do(self, operation: Operation, asked: Asked) -> Response:
        doing: dict[Operation, Callable[[Asked], Awaitable[Response]]] = {
            "read": self._get,
            "list": self._list,
            "write": self._put,
            "delete": self._delete,
            "regenerateToken": self._regenerate,
            "reportStatus": self._report,
            "listCredentials": self._credentials,
        }
        return await doing[operation](asked)

    async def _get(self, asked: Asked) -> Response:
        found, shown = await self.reading.get(asked.cluster, asked.target.node)
        if asked.request.caller.is_node(found.identity):
            self.doors.cards.saw(found.cluster, found.key, time.time())
            await self.reporting.granting.try_to_let_in(asked.cluster, found, asked.request)
        if none_match(asked.incoming.headers.get("if-none-match", ""), found.etag):
            return requests.answer(304, headers={"ETag": found.etag})
        return requests.answer(200, shown, {"ETag": found.etag})

    async def _list(self, asked: Asked) -> Response:
        wanted = reading.asked(*(asked.query.get(name) for name in ("$filter", "$top", "$skiptoken")))
        found, after = await self.reading.list(asked.cluster, wanted)
        document: dict[str, Any] = {"value": found}
        if after is not None:
            document["nextLink"] = _next_link(asked, after)
        return requests.answer(200, document)

    async def _put(self, asked: Asked) -> Response:
        url = asked.flag("configUrl")
        body = await requests.body(asked.incoming)
        written = await self.writing.put(asked.cluster, asked.target.node, body, asked.guard, asked.request, url=url)
        shown = self.reading.show(asked.cluster, written.node)
        if written.url:
            shown["properties"] |= written.url.document()
        return requests.answer(201 if written.created else 200, shown, {"ETag": written.node.etag})

    async def _delete(self, asked: Asked) -> Response:
        gone = await self.writing.delete(asked.cluster, asked.target.node, asked.guard, asked.request)
        return requests.answer(204) if gone is None else requests.answer(200, gone)

    async def _regenerate(self, asked: Asked) -> Response:
        await requests.optional_body(asked.incoming)
        written = await self.writing.regenerate(asked.cluster, asked.target.node, asked.request)
        await self.reporting.granting.try_to_let_in(asked.cluster, written.node, asked.request)
        url = written.url.document() if written.url else {}
        return requests.answer(200, {"configVersion": str(written.node.version), **url})

    async def _report(self, asked: Asked) -> Response:
        said = await requests.body(asked.incoming)
        told = await self.reporting.report(asked.cluster, asked.target.node, said, asked.request)
        return requests.answer(200, told)

    async def _credentials(self, asked: Asked) -> Response:
        return requests.answer(200, await self.reporting.credentials(asked.cluster, asked.target.node, asked.request))

    def _count(self, operation: str, status: int, seconds: float) -> None:
        self.metrics.requests.labels(operation, str(status)).inc()
        self.metrics.seconds.labels(operation).observe(seconds)


def check_version(query: Mapping[str, str]) -> None:
    version = query.get("api-version")
    if not version:
        raise errors.missing_version()
    if version.lower() != API_VERSION:
        raise errors.unknown_version()


def _operation(method: str, where: Target) -> Operation:
    allowed: dict[str, Operation] = {"GET": "list"}
    if where.action:
        allowed = {"POST": where.action}
    elif where.node:
        allowed = {"GET": "read", "PUT": "write", "DELETE": "delete"}
    if method not in allowed:
        raise errors.not_allowed(method, ", ".join(allowed))
    return allowed[method]


def _next_link(asked: Asked, after: str) -> str:
    """Below the address that the caller used: ARM, which forwards, says it as the Referer."""
    own = str(asked.incoming.url)
    referrer = asked.incoming.headers.get("referer", "")
    said = urlsplit(referrer)
    base = referrer if said.scheme == "https" and said.path.lower() == asked.incoming.url.path.lower() else own
    query = {name: value for name, value in parse_qsl(asked.incoming.url.query) if name.lower() != "$skiptoken"}
    return f"{base.partition('?')[0]}?{urlencode({**query, '$skipToken': after}, safe='$')}"
