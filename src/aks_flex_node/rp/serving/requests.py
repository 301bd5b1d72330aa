"""What is common to all requests: their ids, where they come from, their bodies, and what answers look like."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.resource import reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as Incoming

    from aks_flex_node.errors import FlexError
    from aks_flex_node.rp.arm.errors import ArmError

log = logging.getLogger("aks_flex_node.rp.requests")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
BODY_SECONDS = 30.0  # in which a megabyte comes over the worst of lines
ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def fresh_id() -> str:
    return str(uuid.uuid4())


def source(incoming: Incoming) -> str:
    return incoming.client.host if incoming.client else ""


def returned_ids(incoming: Incoming, request_id: str) -> dict[str, str]:
    """Ours always; the client's own when it asks for it."""
    ids = {"x-ms-request-id": request_id}
    given = incoming.headers.get("x-ms-client-request-id", "")
    wanted = incoming.headers.get("x-ms-return-client-request-id", "").lower() == "true"
    if wanted and given and len(given) <= 128 and given.isascii() and given.isprintable():
        ids["x-ms-client-request-id"] = given
    return ids


async def body(incoming: Incoming) -> dict[str, Any]:
    kind = incoming.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise errors.ArmError(415, "UnsupportedMediaType", "The body must be application/json.")
    parsed = reading.parse(await bounded(incoming))
    if isinstance(parsed, Problem):
        raise errors.invalid([parsed])
    return parsed


async def optional_body(incoming: Incoming) -> dict[str, Any]:
    """The same where a body may be left out."""
    content = await bounded(incoming)
    parsed = reading.parse(content) if content.strip() else {}
    if isinstance(parsed, Problem):
        raise errors.invalid([parsed])
    return parsed


async def bounded(incoming: Incoming) -> bytes:
    """No more is taken into memory than a body may have, and nobody is waited for without end."""
    try:
        return await asyncio.wait_for(_body(incoming), BODY_SECONDS)
    except ClientDisconnect:
        raise errors.ArmError(400, "InvalidRequestContent", "The body was cut off.") from None
    except asyncio.TimeoutError:
        message = f"The body did not come within {BODY_SECONDS:g} s."
        raise errors.ArmError(408, "RequestTimeout", message, headers={"Connection": "close"}) from None


async def _body(incoming: Incoming) -> bytes:
    content = b""
    async for piece in incoming.stream():
        content += piece
        if len(content) > reading.LARGEST:
            message = f"The body has more than {reading.LARGEST} bytes."
            raise errors.ArmError(413, "RequestEntityTooLarge", message)
    return content


def answer(status: int, document: object = None, headers: Mapping[str, str] | None = None) -> Response:
    content = b"" if document is None else _encode(document).encode()
    kind = None if document is None else "application/json; charset=utf-8"
    return Response(content, status, {**ALWAYS, **(headers or {})}, media_type=kind)


def failure(error: FlexError, request_id: str) -> ArmError:
    """What could not be done, now or at all, through no fault of the caller."""
    log.log(
        logging.WARNING if error.again else logging.ERROR, "%s: %s", error.name, error, extra={"request": request_id}
    )
    if error.name == "node-name-taken":
        return errors.ArmError(409, "Conflict", f"{error.message} {error.hint}")
    if error.again:
        return errors.ArmError(503, "ServiceUnavailable", error.message, headers={"Retry-After": "2"})
    return errors.ArmError(500, "InternalServerError", f"{error.message} {error.hint}".strip())


def refusal(error: ArmError) -> Response:
    return answer(error.status, error.document(), {**error.headers, "x-ms-error-code": error.code})
