"""The endpoint of machines that enrol. They have no identity yet: the URL and the proof of their key admit them."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from aks_flex_node.api.enrolments import ENROLMENT_PATH, MAX_FACTS_BYTES, NOT_FOUND, parse_facts
from aks_flex_node.api.machine_identity import MACHINE_HEADER, parse_machine_header
from aks_flex_node.api.node_keys import AUDIENCE_HEADER
from aks_flex_rp.api import http_messages
from aks_flex_rp.api.routes import ALL_METHODS, answered, failure_text
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.bounded_memory import Throttle
from aks_flex_rp.nodes.enroller import WAIT_SECONDS, Waiting
from aks_flex_rp.nodes.machine_provisioner import MachineRequest

if TYPE_CHECKING:
    from starlette.requests import Request as Incoming

    from aks_flex_rp.api.authorization import Authorizer
    from aks_flex_rp.nodes.enroller import Enroller
    from aks_flex_rp.nodes.join_tracker import JoinTracker
    from aks_flex_rp.store.pool_model import Enrolment

FAILURE_SECONDS = 60.0  # between two reports of a failed join of one node
MAX_FAILED = 20_000  # nodes whose last report is remembered

log = logging.getLogger("aks_flex_rp.requests")


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
            raise errors.invalid_request([Problem("proof", "The proof of the machine's key is needed.")])
        thumbprint = http_messages.proved_key(proof, incoming.path_params["secret"], "proof")
        if wait := self.authorizer.limits.acquire(f"enrol {enrolment.key} {thumbprint}", "write"):
            raise errors.too_many_requests(wait)
        source = http_messages.client_address(incoming)
        if "joinFailure" in body:
            return await self._join_failed(enrolment, thumbprint, str(body["joinFailure"]), source, request_id)
        try:
            facts = parse_facts(body.get("facts"))
        except ValueError as error:
            raise errors.invalid_request([Problem("facts", str(error))]) from None
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
        source = http_messages.client_address(incoming)
        found = await self.enroller.find(incoming.path_params["secret"])
        fields = {"request": request_id, "operation": "enrol", "status": 200 if found else 404, "source": source}
        log.info("%s /enrolments/***", incoming.method, extra=fields)
        if found is None:
            # Only failed lookups are limited: a whole site of machines may share one address.
            if wait := self.authorizer.limits.acquire(f"address {source}", "read"):
                raise errors.too_many_requests(wait)
            message = "This enrolment URL is not valid. Create a new one with `aks-flex-rp pool enrolment create`."
            raise ArmError(404, NOT_FOUND, message)
        return found


async def _body(incoming: Incoming) -> dict[str, Any]:
    try:
        body = json.loads(await http_messages.read_bounded(incoming, MAX_FACTS_BYTES))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise errors.invalid_request([Problem("", "The body must be a JSON object.")])
    return body
