"""Informer for one kind of object: list, then watch, with retries. Also a loop that runs a task periodically."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from aks_flex_node.errors import FlexError
from aks_flex_node.retry import backoff_delays
from aks_flex_rp.clusters.client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aks_flex_rp.clusters.client import KubeClient, KubeObject

log = logging.getLogger(__name__)
Item = TypeVar("Item")
LASTING = 5.0  # seconds after which a watch counts as working


class InformerHandler(Protocol):
    async def listed(self, items: list[KubeObject]) -> None:
        """Handles the list of all objects. Called first, and again when events may have been missed."""
        ...

    async def changed(self, kind: str, item: KubeObject) -> None:
        """Handles an event: one object was ADDED, MODIFIED or DELETED."""
        ...


class Informer:
    """Lists and watches objects. After an error in the handler, everything is listed again, so nothing is missed."""

    def __init__(self, client: KubeClient, path: str, handler: InformerHandler, selector: str = "") -> None:
        self._client = client
        self._path = path
        self._handler = handler
        self._query = {"labelSelector": selector} if selector else {}  # all objects if empty
        self._version = ""  # handled up to this version; empty: list again

    async def once(self) -> None:
        """Lists and watches until the server ends the watch, or until an error."""
        try:
            if not self._version:
                # List from the server's cache, as the watch does: a newer version could make the watch wait.
                items, version = await self._client.list(self._path, resourceVersion="0", **self._query)
                await self._handler.listed(items)
                self._version = version
            async with aclosing(self._client.watch(self._path, self._version, **self._query)) as events:
                async for kind, item in events:
                    self._version = ""  # unknown until the event is handled
                    if kind != "BOOKMARK":
                        await self._handler.changed(kind, item)
                    self._version = item["metadata"]["resourceVersion"]
        except ApiRefused:
            self._version = ""  # too old, or unknown to this server
            raise


async def run_periodically(what: str, once: Callable[[], Awaitable[None]], rest: float = 0.0) -> NoReturn:
    """Runs `once` repeatedly, `rest` seconds after each success, and with backoff after a failure."""
    waits = backoff_delays()
    well = True
    while True:
        began = time.monotonic()
        try:
            await once()
        except Exception as error:  # the task is retried after any error
            if well or time.monotonic() - began > LASTING:
                log.warning("%s: failed, retrying: %s", what, error, exc_info=is_unexpected(error))
            well = False
        else:
            well = True
        if time.monotonic() - began > LASTING:
            waits = backoff_delays()
        await asyncio.sleep(rest if well and rest else next(waits))


async def handle_each(items: Iterable[Item], handle: Callable[[Item], Awaitable[None]]) -> None:
    """Handles all items, then raises the first error, so that one failing item does not block the others."""
    failure: Exception | None = None
    for item in items:
        try:
            await handle(item)
        except Exception as error:  # raised below
            failure = failure or error
    if failure:
        raise failure


def is_unexpected(error: Exception) -> bool:
    """Returns whether the error should be logged with a stack trace."""
    return not isinstance(error, (FlexError, ApiRefused))
