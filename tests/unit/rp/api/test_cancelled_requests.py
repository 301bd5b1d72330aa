"""Responses to cancelled requests of a stopping replica."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.api.cancelled_requests import with_response_on_cancel

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/"}


async def nothing() -> Message:
    await asyncio.Event().wait()
    return {}


async def cancelled(*first: Message) -> list[Message]:
    """Returns what a client gets from an application that sends `first`, and is cancelled while it waits."""
    sent: list[Message] = []

    async def held(_: dict[str, Any], receive: Receive, send: Send) -> None:
        for message in first:
            await send(message)
        await receive()

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.ensure_future(with_response_on_cancel(held)(SCOPE, nothing, send))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return sent


def test_cancelled_request_is_told_to_repeat() -> None:
    start, body = asyncio.run(cancelled())

    assert start["status"] == 503
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["retry-after"] == "1"
    assert headers["connection"] == "close"
    assert json.loads(body["body"])["error"]["code"] == "ServiceUnavailable"


def test_response_that_has_begun_is_not_followed_by_another() -> None:
    begun = {"type": "http.response.start", "status": 200, "headers": []}

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(begun))
