"""Responses to cancelled requests of a stopping replica."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.api.http_messages import with_response_on_cancel

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/"}
BEGUN: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def nothing() -> Message:
    await asyncio.Event().wait()
    return {}


async def cancelled(*first: Message, method: str = "GET", unread: bool = False) -> list[Message]:
    """Returns what a client gets from an application that sends `first`, and is cancelled while it waits.

    The client of an unread connection begins to read after the cancellation.
    """
    sent: list[Message] = []
    reads = asyncio.Event()
    if not unread:
        reads.set()

    async def held(_: dict[str, Any], receive: Receive, send: Send) -> None:
        for message in first:
            await send(message)
        await receive()

    async def send(message: Message) -> None:
        await reads.wait()
        sent.append(message)

    task = asyncio.ensure_future(with_response_on_cancel(held)({**SCOPE, "method": method}, nothing, send))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    reads.set()
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
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(BEGUN))


def test_response_that_was_not_sent_yet_is_replaced() -> None:
    start, _ = asyncio.run(cancelled(BEGUN, unread=True))

    assert start["status"] == 503


def test_cancelled_change_says_that_its_outcome_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="aks_flex_rp.requests"):
        start, body = asyncio.run(cancelled(method="PUT"))

    assert "may have been made" in json.loads(body["body"])["error"]["message"]
    [record] = caplog.records
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert vars(record)["request"] == headers["x-ms-request-id"]
