"""Helpers of all endpoints: request IDs, client address, bounded request bodies, JSON responses, and responses to
requests that a stopping replica has no time left for.

uvicorn cancels those, and would respond with 500, an error of the service. 503 tells the client to repeat its
request, which then reaches another replica.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aks_flex_node.api.arm_errors import NODE_KEY_TIME
from aks_flex_node.api.node_keys import KEY_HEADER, url_audience
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.auth.node_assertions import InvalidNodeKey, verify_proof
from aks_flex_rp.resource import validation
from aks_flex_rp.time_limit import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from starlette.requests import Request as Incoming
    from starlette.types import Message, Receive, Send

    from aks_flex_node.errors import FlexError

    Application: TypeAlias = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


log = logging.getLogger("aks_flex_rp.requests")
BODY_SECONDS = 30.0  # enough for one megabyte over a very slow line
DEFAULT_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def new_request_id() -> str:
    return str(uuid.uuid4())


def client_address(incoming: Incoming) -> str:
    return incoming.client.host if incoming.client else ""


def add_request_ids(response: Response, incoming: Incoming, request_id: str) -> None:
    """Adds the headers with the request ID, and with the client's own ID if it asks for it."""
    response.raw_headers.append((b"x-ms-request-id", request_id.encode()))
    if incoming.headers.get("x-ms-return-client-request-id", "").lower() != "true":
        return
    own = incoming.headers.get("x-ms-client-request-id", "")
    if own and len(own) <= 128 and own.isascii() and own.isprintable():
        response.raw_headers.append((b"x-ms-client-request-id", own.encode()))


async def read_json(incoming: Incoming) -> dict[str, Any]:
    kind = incoming.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise errors.ArmError(415, "UnsupportedMediaType", "The body must be application/json.")
    return _parsed(await read_bounded(incoming))


async def read_optional_json(incoming: Incoming) -> dict[str, Any]:
    """Reads a JSON body. An empty body counts as an empty object."""
    content = await read_bounded(incoming)
    return _parsed(content) if content.strip() else {}


def _parsed(content: bytes) -> dict[str, Any]:
    parsed = validation.parse_body(content)
    if isinstance(parsed, Problem):
        raise errors.invalid_request([parsed])
    return parsed


def proved_key(proof: str, secret: str, target: str = KEY_HEADER) -> str:
    """Returns the thumbprint of the key of a client. Raises ArmError if it has not proved that it has a key, for the
    URL with this secret.
    """
    if not proof:
        message = (
            f"The request has no proof of the machine's node key ({target}). Run the command of `aks-flex-rp node "
            "join-command` on the machine: its agent makes the key and sends the proof."
        )
        raise errors.ArmError(400, "NodeKeyRequired", message, target)
    try:
        return verify_proof(proof, url_audience(secret))
    except InvalidNodeKey as error:
        code = NODE_KEY_TIME if error.is_time else "InvalidNodeKey"
        what = "The header" if target == KEY_HEADER else "The property"
        raise errors.ArmError(400, code, f"{what} {target} {error.why}", target) from None


async def read_bounded(incoming: Incoming, limit: int = validation.MAX_BODY_BYTES) -> bytes:
    """Reads a request body with a limit on its size and on the time to receive it."""
    try:
        return await within(BODY_SECONDS, _body(incoming, limit))
    except ClientDisconnect:
        raise errors.invalid("", "The request body is incomplete.") from None
    except asyncio.TimeoutError:
        message = f"The request body was not received within {BODY_SECONDS:g} s."
        raise errors.ArmError(408, "RequestTimeout", message, headers={"Connection": "close"}) from None


async def _body(incoming: Incoming, limit: int) -> bytes:
    content = b""
    async for piece in incoming.stream():
        content += piece
        if len(content) > limit:
            message = f"The request body is larger than {limit} bytes."
            raise errors.ArmError(413, "RequestEntityTooLarge", message)
    return content


# Plain JSON types only: an object that gets into a response by mistake must fail instead of exposing its fields.
ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))


def json_response(status: int, document: object = None, headers: Mapping[str, str] | None = None) -> Response:
    content = b"" if document is None else ENCODER.encode(document).encode()
    kind = None if document is None else "application/json; charset=utf-8"
    return Response(content, status, {**DEFAULT_HEADERS, **(headers or {})}, media_type=kind)


def arm_error(error: FlexError, request_id: str) -> ArmError:
    """Maps an internal error to an ARM error response: 503 if a retry can help, 409 for a name conflict, else 500."""
    log.log(
        logging.WARNING if error.retryable else logging.ERROR,
        "%s: %s",
        error.name,
        error,
        extra={"request": request_id},
    )
    if error.name == "node-name-taken":
        return errors.ArmError(409, "Conflict", f"{error.message} {error.hint}")
    if error.retryable:
        return errors.ArmError(503, "ServiceUnavailable", error.message, headers={"Retry-After": "2"})
    details = (errors.ErrorDetail(error.name, error.message),)  # the name is in the error catalogue
    return errors.ArmError(500, "InternalServerError", f"{error.message} {error.hint}".strip(), details=details)


def error_response(error: ArmError) -> Response:
    return json_response(error.status, error.document(), {**error.headers, "x-ms-error-code": error.code})


MESSAGE = "This replica of the service is stopping. Repeat the request."
UNKNOWN_OUTCOME = "This replica of the service is stopping. The change may have been made. Repeat the request."
READING_METHODS = {"GET", "HEAD"}


def with_response_on_cancel(app: Application) -> Application:
    """Wraps an application so that a cancelled request gets a response, unless one has begun."""

    async def call(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            await send(message)
            begun = True

        try:
            await app(scope, receive, send_on)
        except asyncio.CancelledError:
            if begun:
                raise
            await respond_to_cancelled(scope, receive, send)

    return call


async def respond_to_cancelled(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Responds to a cancelled request to which no response has begun."""
    method, request_id = scope["method"], new_request_id()
    log_fields = {"request": request_id, "operation": "cancelled", "status": 503}
    log.warning("%s 503", method, extra=log_fields)  # without the path, which may contain the secret of a config URL
    headers = {"Retry-After": "1", "Connection": "close", "x-ms-request-id": request_id}
    message = MESSAGE if method in READING_METHODS else UNKNOWN_OUTCOME
    error = ArmError(503, "ServiceUnavailable", message, headers=headers)
    await error_response(error)(scope, receive, send)
