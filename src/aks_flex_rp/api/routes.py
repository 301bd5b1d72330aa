"""Starlette application: the route table, and the endpoints besides ARM resources.

These are config bundles, enrolments of machines, operations, OpenAPI, health, metrics and audit. A machine that
enrols has no identity yet: the URL and the proof of its key admit it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request as Incoming
from starlette.responses import Response
from starlette.routing import Match, Route

from aks_flex_node.api.enrolments import ENROLMENT_PATH, MAX_FACTS_BYTES, NOT_FOUND, parse_facts
from aks_flex_node.api.machine_identity import MACHINE_HEADER, parse_machine_header
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, KEY_HEADER
from aks_flex_node.errors import FlexError
from aks_flex_node.timestamps import format_utc_microseconds
from aks_flex_rp.api import http_messages
from aks_flex_rp.api.arm_routes import check_version
from aks_flex_rp.api.authorization import POOL_ACTIONS, azure_action
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import PROVIDER, parse_cluster_id
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.bounded_memory import Throttle
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.nodes.enroller import WAIT_SECONDS, MachineRequest, Waiting
from aks_flex_rp.nodes.machine_claims import FetchingClient
from aks_flex_rp.nodes.reports import StatusReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from aks_flex_rp.api.arm_routes import ArmRoutes
    from aks_flex_rp.api.authorization import Authorizer
    from aks_flex_rp.api.metrics import Metrics, MetricsAccess
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.delivery.config_url import BuiltInDelivery, FetchedBundle
    from aks_flex_rp.nodes.enroller import Enroller
    from aks_flex_rp.nodes.join_tracker import JoinTracker
    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import Enrolment


log = logging.getLogger(__name__)
request_log = logging.getLogger("aks_flex_rp.requests")
OPERATIONS_PATH = "/providers/microsoft.containerservice/operations"
ALL_METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"]


def create_app(arm: ArmRoutes, own: ServiceRoutes, pages: Sequence[Route] = ()) -> Starlette:
    reads = (
        ("/configs/{secret}", own.bundle),
        ("/openapi.json", own.openapi),
        ("/healthz", own.healthz),
        ("/readyz", own.readyz),
        ("/metrics", own.metrics_text),
        ("/audit", own.audit),
    )
    posts = {"/configs/{secret}": own.join_report}
    routes = [Route(path, answered(endpoint, posts.get(path)), methods=ALL_METHODS) for path, endpoint in reads]
    operations = answered(own.operations)

    async def others(incoming: Incoming) -> Response:
        """Handles paths that no route matched: ARM paths are case-insensitive, Starlette's are not."""
        if incoming.url.path.lower().rstrip("/") == OPERATIONS_PATH:
            return await operations(incoming)
        return await arm(incoming)

    everything = Route("/{rest:path}", others, methods=ALL_METHODS)
    resources = ArmRoute("/subscriptions/{rest:path}", arm.__call__, methods=ALL_METHODS)
    return Starlette(
        routes=[resources, *routes, *pages, everything], exception_handlers={405: _not_allowed, Exception: _broken}
    )


class ArmRoute(Route):
    """Matches all paths below /subscriptions/ case-insensitively, without trying the patterns of other routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["path"][:15].lower() != "/subscriptions/":
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": {}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds without what Route does for every request: the endpoint handles all methods and its own errors."""
        response = await self.endpoint(Incoming(scope, receive, send))
        await response(scope, receive, send)


Endpoint: TypeAlias = "Callable[[Incoming, str], Awaitable[Response]]"


def answered(get: Endpoint | None = None, post: Endpoint | None = None) -> Callable[[Incoming], Awaitable[Response]]:
    """Wraps an endpoint for GET, one for POST, or both, that return errors in ARM's format.

    HEAD does not count as a bundle fetch.
    """
    endpoints = {method: endpoint for method, endpoint in (("GET", get), ("POST", post)) if endpoint}

    async def answer(incoming: Incoming) -> Response:
        request_id = http_messages.new_request_id()
        try:
            if incoming.method not in endpoints:
                raise errors.method_not_allowed(incoming.method, ", ".join(endpoints))
            response = await endpoints[incoming.method](incoming, request_id)
        except ArmError as error:
            response = http_messages.error_response(error)
        except FlexError as error:
            response = http_messages.error_response(http_messages.arm_error(error, request_id))
        http_messages.add_request_ids(response, incoming, request_id)
        return response

    return answer


async def _not_allowed(incoming: Incoming, _: Exception) -> Response:
    error = errors.method_not_allowed(incoming.method, "GET")
    error.headers = {**error.headers, "x-ms-request-id": http_messages.new_request_id()}
    return http_messages.error_response(error)


async def _broken(incoming: Incoming, error: Exception) -> Response:
    """Handles an unexpected exception: logs it in full, and returns only the request ID to the caller."""
    request_id = http_messages.new_request_id()
    log.error("Request failed.", exc_info=error, extra={"request": request_id, "operation": incoming.method})
    message = f"Internal error. Request ID: {request_id}."
    return http_messages.error_response(
        ArmError(500, "InternalServerError", message, headers={"x-ms-request-id": request_id})
    )


OPERATION_DESCRIPTIONS = {
    "read": "Read flex nodes.",
    "write": "Create and update flex nodes.",
    "delete": "Delete flex nodes.",
    "regenerateToken": "Create a new bootstrap token and config URL for a flex node.",
    "listConfigUrl": "Create a new bootstrap token and config URL for a flex node from a template.",
    "reportStatus": "Report the status of a flex node.",
    "listCredentials": "Read the credentials of a flex node.",
    "rotateKey": "Replace the key of a flex node, by the node itself.",
    "revokeKey": "Revoke the key of a flex node.",
    "readPool": "Read pools of flex nodes and their revisions.",
    "writePool": "Create and update pools of flex nodes.",
    "deletePool": "Delete pools of flex nodes.",
    "applyPool": "Bring nodes of a pool to a revision of its template.",
    "readEnrolment": "Read enrolments of pools and their machines.",
    "writeEnrolment": "Create and revoke enrolments of pools, approve and reject their machines.",
    "release": "Let a re-imaged machine take over its flex node.",
    "readRollout": "Read roll-outs of pools and their nodes.",
    "writeRollout": "Create, change, end and delete roll-outs of pools, and allow barred revisions.",
}

MAX_FAILURE_LENGTH = 2000  # of the text that the unauthenticated bearer of a URL may store


def log_secret_url(
    authorizer: Authorizer, incoming: Incoming, request_id: str, operation: str, path: str, *, is_found: bool
) -> None:
    """Logs a request to a URL with a secret, without it. Raises ArmError if its address has failed too often."""
    source = http_messages.client_address(incoming)
    fields = {"request": request_id, "operation": operation, "status": 200 if is_found else 404, "source": source}
    request_log.info("%s %s***", incoming.method, path, extra=fields)
    # Only failed lookups are limited: a whole site of joining machines may share one address.
    if not is_found and (wait := authorizer.limits.acquire(f"address {source}", "read")):
        raise errors.too_many_requests(wait)


def failure_text(told: str) -> str:
    """Returns what is stored of the text of a machine: its lines without control characters, which are shown to
    people in terminals.
    """
    return "".join(each for each in told if each.isprintable() or each == "\n")[:MAX_FAILURE_LENGTH]


@dataclass(frozen=True)
class ServiceRoutes:
    authorizer: Authorizer
    join_tracker: JoinTracker
    metrics: Metrics
    bundles: BuiltInDelivery
    ready: Callable[[], bool]
    metrics_access: MetricsAccess

    async def bundle(self, incoming: Incoming, request_id: str) -> Response:
        """Returns the bundle of a config URL."""
        source = http_messages.client_address(incoming)
        found = await self._find_bundle(incoming, request_id, "bundle")
        machine = parse_machine_header(incoming.headers.get(MACHINE_HEADER, ""))
        key = http_messages.proved_key(incoming.headers.get(KEY_HEADER, ""), incoming.path_params["secret"])
        await self.join_tracker.on_config_fetched(found, FetchingClient(machine, key, source, request_id))
        headers = {**http_messages.DEFAULT_HEADERS, "Pragma": "no-cache"}
        cluster = await self.authorizer.context.clusters.find(found.cluster)
        if cluster and cluster.key_audience:
            headers[AUDIENCE_HEADER] = cluster.key_audience
        return Response(found.bundle, 200, headers, media_type="application/json")

    async def join_report(self, incoming: Incoming, request_id: str) -> Response:
        """Stores why the bearer of a config URL could not join. Before the join, it may have no other identity."""
        found = await self._find_bundle(incoming, request_id, "joinReport")
        if wait := self.authorizer.limits.acquire(f"url {found.cluster}/{found.node}", "write"):
            raise errors.too_many_requests(wait)
        report = StatusReport.read(await http_messages.read_json(incoming))
        if report.join_phase is not JoinPhase.FAILED or not report.join_failure:
            message = "A report to a config URL has joinState Failed and a joinFailure."
            raise errors.invalid("joinState", message)
        source = http_messages.client_address(incoming)
        why = failure_text(report.join_failure)
        await self.join_tracker.on_join_failed(found.cluster, found.node, why, source, request_id)
        return http_messages.json_response(200, {})

    async def _find_bundle(self, incoming: Incoming, request_id: str, operation: str) -> FetchedBundle:
        """Returns the bundle of the URL in the request. All invalid URLs get the same response."""
        found = await self.bundles.fetch(incoming.path_params["secret"], time.time())
        if operation == "bundle":
            self.metrics.bundles.labels("fetched" if found else "refused").inc()
        log_secret_url(self.authorizer, incoming, request_id, operation, "/configs/", is_found=found is not None)
        if found is None:
            raise errors.config_url_not_found()
        return found

    async def _caller(self, incoming: Incoming) -> Caller:
        source = http_messages.client_address(incoming)
        return await self.authorizer.caller(incoming.headers.get("authorization", ""), source)

    async def operations(self, incoming: Incoming, _: str) -> Response:
        check_version({name.lower(): value for name, value in parse_qsl(incoming.url.query)})
        await self._caller(incoming)
        return http_messages.json_response(200, {"value": [_operation(name) for name in OPERATION_DESCRIPTIONS]})

    async def openapi(self, incoming: Incoming, _: str) -> Response:
        document = {**_contract(), "host": incoming.url.netloc}
        return http_messages.json_response(200, document)

    async def healthz(self, *_: object) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def readyz(self, incoming: Incoming, _: str) -> Response:
        """Returns whether the service can take requests: the store responds, and the service is not shutting down.

        A load balancer excludes the store (`?exclude=store`). Otherwise a database that all replicas share would take
        all of them away when it is slow, and clients would be refused instead of waiting or getting an error.
        """
        store = True
        if incoming.query_params.get("exclude") != "store":
            store = await self.authorizer.context.store.healthy()
            self.metrics.store_up.set(store)
        if store and self.ready() and not self.authorizer.poll_cache.closing.is_set():
            return Response(b"ready\n", media_type="text/plain")
        why = "stopping" if store else "the store does not respond"
        return Response(f"not ready: {why}\n".encode(), 503, media_type="text/plain")

    async def metrics_text(self, incoming: Incoming, _: str) -> Response:
        authorization = incoming.headers.get("authorization", "")
        self.metrics_access.check(http_messages.client_address(incoming), authorization)
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def audit(self, incoming: Incoming, _: str) -> Response:
        """Returns the audit events of one cluster or node, newest first, to callers that may read it."""
        return http_messages.json_response(200, await self._audit(incoming))

    async def _audit(self, incoming: Incoming) -> dict[str, Any]:
        query = incoming.query_params
        caller = await self._caller(incoming)
        resource = query.get("resource", "").rstrip("/")
        cluster = parse_cluster_id(resource) or parse_cluster_id(
            re.sub(r"(?i)/flexnode(config|pools)(/[^/]*(/enrolments(/[^/]*)?)?)?$", "", resource)
        )
        if wait := self.authorizer.retry_after(caller, None, "read"):
            raise errors.too_many_requests(wait)
        if cluster is None and caller.kind is not CallerKind.KEY:
            raise errors.invalid("resource", "Set `resource` to the ID of a cluster or a flex node.")
        known = cluster and await self.authorizer.context.clusters.find(cluster.key)
        # Azure is asked only about known clusters, so that requests for invented ones cause no calls.
        if cluster and not await self.authorizer.roles.allows(caller, Operation.AUDIT, cluster, ask=bool(known)):
            raise errors.forbidden(caller, azure_action(Operation.AUDIT), resource)
        numbers = {name: query.get(name, "0") for name in ("before", "limit")}
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers.values()):
            raise errors.invalid("before", "The values of before and limit must be numbers.")
        events = await self.authorizer.context.store.audit(
            resource=resource,
            caller=query.get("who", ""),
            what=query.get("what", ""),
            before=int(numbers["before"]),
            limit=min(int(numbers["limit"]) or 100, 1000),
        )
        return {"value": [event_document(event) for event in events]}


def event_document(event: AuditEvent) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "at": format_utc_microseconds(event.at),
        "who": event.who,
        "whoId": event.who_id,
        "what": event.what,
        "resource": event.resource,
        "outcome": event.outcome,
        "source": event.source,
        "request": event.request,
        "detail": event.detail,
    }


def _operation(name: str) -> dict[str, Any]:
    display = {
        "provider": PROVIDER,
        "resource": "Flex node pools" if name in POOL_ACTIONS else "Flex nodes",
        "operation": name,
        "description": OPERATION_DESCRIPTIONS[name],
    }
    return {"name": azure_action(name), "isDataAction": False, "display": display, "origin": "user,system"}


@cache
def _contract() -> dict[str, Any]:
    """Returns the compiled OpenAPI document without examples, which are separate files."""
    text = files("aks_flex_rp.api").joinpath("openapi.json").read_text()
    document: dict[str, Any] = json.loads(text)
    for path in document["paths"].values():
        for operation in path.values():
            operation.pop("x-ms-examples", None)
    return document


FAILURE_SECONDS = 60.0  # between two reports of a failed join of one node
MAX_FAILED = 20_000  # nodes whose last report is remembered


@dataclass(frozen=True)
class MachineRoutes:
    enroller: Enroller
    authorizer: Authorizer
    join_tracker: JoinTracker
    failures: Throttle = field(default_factory=lambda: Throttle(FAILURE_SECONDS, time.monotonic, MAX_FAILED))

    def routes(self) -> tuple[Route, ...]:
        path = ENROLMENT_PATH + "{secret}"
        return (Route(path, answered(post=self.enrol), methods=ALL_METHODS),)

    async def enrol(self, incoming: Incoming, request_id: str) -> Response:
        enrolment = await self._find(incoming, request_id)
        body = await _body(incoming)
        proof = body.get("proof")
        if not isinstance(proof, str) or not proof:
            raise errors.invalid("proof", "The proof of the machine's key is needed.")
        thumbprint = http_messages.proved_key(proof, incoming.path_params["secret"], "proof")
        if wait := self.authorizer.limits.acquire(f"enrol {enrolment.key} {thumbprint}", "write"):
            raise errors.too_many_requests(wait)
        source = http_messages.client_address(incoming)
        if "joinFailure" in body:
            return await self._join_failed(enrolment, thumbprint, str(body["joinFailure"]), source, request_id)
        try:
            facts = parse_facts(body.get("facts"))
        except ValueError as error:
            raise errors.invalid("facts", str(error)) from None
        machine = parse_machine_header(incoming.headers.get(MACHINE_HEADER, ""))
        result = await self.enroller.enrol(enrolment, MachineRequest(thumbprint, facts, machine, source, request_id))
        if isinstance(result, Waiting):
            waits = {"fingerprint": result.fingerprint, "retryAfterSeconds": WAIT_SECONDS}
            return http_messages.json_response(202, waits, {"Retry-After": str(WAIT_SECONDS)})
        headers = {**http_messages.DEFAULT_HEADERS, AUDIENCE_HEADER: result.cluster.key_audience}
        return Response(result.bundle, 200, headers, media_type="application/json")

    async def _join_failed(
        self, enrolment: Enrolment, thumbprint: str, why: str, source: str, request_id: str
    ) -> Response:
        """Records the failure for the node that has the key of the machine: another machine may be the node since."""
        name = await self.enroller.node_of(enrolment, thumbprint)
        node = await self.enroller.commands.context.store.node(enrolment.cluster, name)
        if node is None or not node.join.keys.is_valid(thumbprint):
            raise ArmError(404, "MachineNotFound", f"The key of this machine is not that of node {name}.")
        if wait := self.failures.wait((node.cluster, node.key)):
            raise errors.too_many_requests(wait)
        await self.join_tracker.on_join_failed(
            enrolment.cluster, name, failure_text(why), source, request_id, thumbprint
        )
        return http_messages.json_response(200, {})

    async def _find(self, incoming: Incoming, request_id: str) -> Enrolment:
        """Returns the enrolment of the URL in the request. All invalid URLs get the same response."""
        found = await self.enroller.find(incoming.path_params["secret"])
        log_secret_url(self.authorizer, incoming, request_id, "enrol", ENROLMENT_PATH, is_found=found is not None)
        if found is None:
            message = "This enrolment URL is not valid. Create a new one with `aks-flex-rp pool enrolment create`."
            raise ArmError(404, NOT_FOUND, message)
        return found


async def _body(incoming: Incoming) -> dict[str, Any]:
    try:
        body = json.loads(await http_messages.read_bounded(incoming, MAX_FACTS_BYTES))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise errors.invalid("", "The body must be a JSON object.")
    return body
