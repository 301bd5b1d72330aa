"""Responses to requests that a stopping replica has no time left for.

uvicorn cancels them, and would respond with 500, an error of the service. 503 tells the client to repeat its request,
which then reaches another replica.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aks_flex_rp.api import http_messages
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from starlette.types import Message, Receive, Send

    Application: TypeAlias = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger("aks_flex_rp.requests")
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
    method, request_id = scope["method"], http_messages.new_request_id()
    log_fields = {"request": request_id, "operation": "cancelled", "status": 503}
    log.warning("%s 503", method, extra=log_fields)  # without the path, which may contain the secret of a config URL
    headers = {"Retry-After": "1", "Connection": "close", "x-ms-request-id": request_id}
    message = MESSAGE if method in READING_METHODS else UNKNOWN_OUTCOME
    error = ArmError(503, "ServiceUnavailable", message, headers=headers)
    await http_messages.error_response(error)(scope, receive, send)
