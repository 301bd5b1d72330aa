"""All addresses of the service, and what is behind each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

from aks_flex_node.errors import FlexError
from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.serving import requests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_node.rp.serving.arm import Arm
    from aks_flex_node.rp.serving.own import Own

log = logging.getLogger(__name__)
OPERATIONS = "/providers/microsoft.containerservice/operations"
ALL = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"]


def application(arm: Arm, own: Own, pages: Sequence[Route] = ()) -> Starlette:
    reads = (
        ("/configs/{secret}", own.bundle),
        ("/openapi.json", own.contract),
        ("/healthz", own.healthy),
        ("/readyz", own.prepared),
        ("/metrics", own.measures),
        ("/audit", own.audit),
    )
    routes = [Route(path, _answered(endpoint), methods=ALL) for path, endpoint in reads]
    operations = _answered(own.operations)

    async def others(incoming: Incoming) -> Response:
        """ARM's paths match without regard to case, which a router's do not."""
        if incoming.url.path.lower().rstrip("/") == OPERATIONS:
            return await operations(incoming)
        return await arm(incoming)

    everything = Route("/{rest:path}", others, methods=ALL)
    return Starlette(routes=[*routes, *pages, everything], exception_handlers={405: _not_allowed, Exception: _broken})


def _answered(endpoint: Callable[[Incoming, str], Awaitable[Response]]) -> Callable[[Incoming], Awaitable[Response]]:
    """Read alone, and answered in ARM's shape whatever happens. A bundle that only was looked at is not fetched."""

    async def answer(incoming: Incoming) -> Response:
        request_id = requests.fresh_id()
        try:
            if incoming.method != "GET":
                raise errors.not_allowed(incoming.method, "GET")
            response = await endpoint(incoming, request_id)
        except ArmError as error:
            response = requests.refusal(error)
        except FlexError as error:
            response = requests.refusal(requests.failure(error, request_id))
        response.headers.update(requests.returned_ids(incoming, request_id))
        return response

    return answer


async def _not_allowed(incoming: Incoming, _: Exception) -> Response:
    error = errors.not_allowed(incoming.method, "GET")
    error.headers = {**error.headers, "x-ms-request-id": requests.fresh_id()}
    return requests.refusal(error)


async def _broken(incoming: Incoming, error: Exception) -> Response:
    """A fault of ours: told to the log in full, and to the caller by its id alone."""
    request_id = requests.fresh_id()
    log.error("A request failed.", exc_info=error, extra={"request": request_id, "operation": incoming.method})
    message = "The service made a mistake. Its log says more at the id of this request."
    return requests.refusal(ArmError(500, "InternalServerError", message, headers={"x-ms-request-id": request_id}))
