"""Responses to requests that a stopping replica has no time left for.

uvicorn cancels them, and would respond with 500, an error of the service. 503 tells the client to repeat its request,
which then reaches another replica.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aks_flex_rp.api import http_messages
from aks_flex_rp.arm.errors import ArmError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from starlette.types import Message, Receive, Send

    Application: TypeAlias = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

MESSAGE = "This replica of the service is stopping. Repeat the request."


def with_response_on_cancel(app: Application) -> Application:
    """Wraps an application so that a cancelled request gets a response, unless one has begun."""

    async def call(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, send_on)
        except asyncio.CancelledError:
            if begun:
                raise
            error = ArmError(503, "ServiceUnavailable", MESSAGE, headers={"Retry-After": "1", "Connection": "close"})
            await http_messages.error_response(error)(scope, receive, send)

    return call
