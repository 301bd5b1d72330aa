"""What the service offers besides ARM's resources: bundles, operations, its contract, health, metrics, the audit."""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.responses import Response

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.arm.ids import PROVIDER, cluster_id
from aks_flex_node.rp.arm.times import exact
from aks_flex_node.rp.serving import requests
from aks_flex_node.rp.serving.arm import check_version
from aks_flex_node.rp.serving.doors import action_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request as Incoming

    from aks_flex_node.rp.delivery.built_in import BuiltIn
    from aks_flex_node.rp.nodes.joins import Joins
    from aks_flex_node.rp.serving.doors import Doors
    from aks_flex_node.rp.serving.metrics import Metrics
    from aks_flex_node.rp.store.store import Event

OPERATIONS = {
    "read": "Read flex nodes.",
    "write": "Create and change flex nodes.",
    "delete": "Remove flex nodes.",
    "regenerateToken": "Make a new token and config URL for a flex node.",
    "listConfigUrl": "The same, from within a template.",
    "reportStatus": "Report the status of a flex node.",
    "listCredentials": "Read the credentials that a flex node is to use.",
}

log = logging.getLogger("aks_flex_node.rp.requests")


@dataclass(frozen=True)
class Own:
    doors: Doors
    joins: Joins
    metrics: Metrics
    bundles: BuiltIn | None
    ready: Callable[[], bool]

    async def bundle(self, incoming: Incoming, request_id: str) -> Response:
        """What waits behind a config URL. Whatever is wrong with it, the answer is the same."""
        source = requests.source(incoming)
        found = None
        if self.bundles:
            found = await self.bundles.fetch(incoming.path_params["secret"], time.time())
        self.metrics.bundles.labels("fetched" if found else "refused").inc()
        said = {"request": request_id, "operation": "bundle", "status": 200 if found else 404, "source": source}
        log.info("GET /configs/***", extra=said)
        if found is None:
            # Only guesses count: behind one address there may be a whole site of machines that join.
            if wait := self.doors.limits.take(f"address {source}", "read"):
                raise errors.too_many(wait)
            message = "This configuration URL is not valid, or no longer. Ask for a new one with regenerateToken."
            raise ArmError(404, "ConfigUrlNotFound", message)
        await self.joins.fetched(found.cluster, found.node, source, request_id)
        headers = {**requests.ALWAYS, "Pragma": "no-cache"}
        return Response(found.bundle, 200, headers, media_type="application/json")

    async def operations(self, incoming: Incoming, _: str) -> Response:
        check_version({name.lower(): value for name, value in parse_qsl(incoming.url.query)})
        await self.doors.caller(incoming.headers.get("authorization", ""))
        return requests.answer(200, {"value": [_operation(name) for name in OPERATIONS]})

    async def contract(self, incoming: Incoming, _: str) -> Response:
        document = {**_contract(), "host": incoming.url.netloc}
        return requests.answer(200, document)

    async def healthy(self, *_: object) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def prepared(self, *_: object) -> Response:
        """Whether requests should be sent here: the store answers, and the service is not about to stop."""
        store = await self.doors.shop.store.healthy()
        self.metrics.store_up.set(store)
        if store and self.ready() and not self.doors.cards.closing.is_set():
            return Response(b"ready\n", media_type="text/plain")
        why = "stopping" if store else "the store does not answer"
        return Response(f"not ready: {why}\n".encode(), 503, media_type="text/plain")

    async def measures(self, *_: object) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def audit(self, incoming: Incoming, _: str) -> Response:
        """Events of one cluster or one node, the newest first, for those who may read there."""
        return requests.answer(200, await self._audit(incoming))

    async def _audit(self, incoming: Incoming) -> dict[str, Any]:
        query = incoming.query_params
        caller = await self.doors.caller(incoming.headers.get("authorization", ""))
        resource = query.get("resource", "").rstrip("/")
        cluster = cluster_id(resource) or cluster_id(re.sub(r"(?i)/flexnodeconfig(/[^/]*)?$", "", resource))
        if wait := self.doors.over_limit(caller, None, "read"):
            raise errors.too_many(wait)
        if cluster is None and caller.kind != "Key":
            raise ArmError(400, "InvalidRequestContent", "Name a cluster or a flex node by its id.", "resource")
        if cluster and not await self.doors.roles.allows(caller, "audit", cluster):
            raise errors.forbidden(caller, action_name("audit"), resource)
        numbers = {name: query.get(name, "0") for name in ("before", "limit")}
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers.values()):
            raise ArmError(400, "InvalidRequestContent", "before and limit must be numbers.", "before")
        events = await self.doors.shop.store.audit(
            resource=resource,
            who=query.get("who", ""),
            what=query.get("what", ""),
            before=int(numbers["before"]),
            limit=min(int(numbers["limit"]) or 100, 1000),
        )
        return {"value": [event_document(event) for event in events]}


def event_document(event: Event) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "at": exact(event.at),
        "who": event.who,
        "what": event.what,
        "resource": event.resource,
        "outcome": event.outcome,
        "source": event.source,
        "request": event.request,
        "detail": event.detail,
    }


def _operation(name: str) -> dict[str, Any]:
    display = {"provider": PROVIDER, "resource": "Flex nodes", "operation": name, "description": OPERATIONS[name]}
    return {"name": action_name(name), "isDataAction": False, "display": display, "origin": "user,system"}


@cache
def _contract() -> dict[str, Any]:
    """As it is compiled, without its examples, which are files of their own."""
    text = files("aks_flex_node.rp.serving").joinpath("openapi.json").read_text()
    document: dict[str, Any] = json.loads(text)
    for path in document["paths"].values():
        for operation in path.values():
            operation.pop("x-ms-examples", None)
    return document
