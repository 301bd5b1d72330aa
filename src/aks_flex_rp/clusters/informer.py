"""Informer for one kind of object: list, then watch, with retries; and a loop that runs a task periodically."""

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
LASTING = 5.0  # seconds after which a watch has worked, although it ended


class InformerHandler(Protocol):
    async def listed(self, items: list[KubeObject]) -> None:
        """All there are. It comes first, and again whenever something may have been missed."""
        ...

    async def changed(self, kind: str, item: KubeObject) -> None:
        """One was ADDED, MODIFIED or DELETED."""
        ...


class Informer:
    """Nothing is missed: what a reaction could not deal with comes again, with everything else there is."""

    def __init__(self, client: KubeClient, path: str, reaction: InformerHandler, selector: str = "") -> None:
        self._client = client
        self._path = path
        self._reaction = reaction
        self._chosen = {"labelSelector": selector} if selector else {}  # which of them; all without it
        self._version = ""  # up to which everything was dealt with; empty: list again

    async def once(self) -> None:
        """Until the server ends the watch, or something fails."""
        try:
            if not self._version:
                # From the server's cache, as the watch after it: a newer version than that can make the watch wait.
                items, version = await self._client.list(self._path, resourceVersion="0", **self._chosen)
                await self._reaction.listed(items)
                self._version = version
            async with aclosing(self._client.watch(self._path, self._version, **self._chosen)) as events:
                async for kind, item in events:
                    await self._take(kind, item)
        except ApiRefused:
            self._version = ""  # too old, or not known to this server
            raise

    async def _take(self, kind: str, item: KubeObject) -> None:
        self._version = ""  # in doubt, until it is dealt with
        if kind != "BOOKMARK":
            await self._reaction.changed(kind, item)
        self._version = item["metadata"]["resourceVersion"]


async def run_periodically(what: str, once: Callable[[], Awaitable[None]], rest: float = 0.0) -> NoReturn:
    """Again and again, `rest` seconds after each success, and after a failure sooner, but less and less often."""
    waits = backoff_delays()
    well = True
    while True:
        began = time.monotonic()
        try:
            await once()
        except Exception as error:  # whatever it is, there is nothing better to do than to try again
            if well or time.monotonic() - began > LASTING:
                log.warning("%s: tried again until it works: %s", what, error, exc_info=is_unexpected(error))
            well = False
        else:
            well = True
        if time.monotonic() - began > LASTING:
            waits = backoff_delays()
        await asyncio.sleep(rest if well and rest else next(waits))


async def handle_each(items: Iterable[Item], handle: Callable[[Item], Awaitable[None]]) -> None:
    """Deal with all of them, and only then fail: one that cannot be dealt with does not keep the others waiting."""
    failure: Exception | None = None
    for item in items:
        try:
            await handle(item)
        except Exception as error:  # told below
            failure = failure or error
    if failure:
        raise failure


def is_unexpected(error: Exception) -> bool:
    """Worth a stack trace."""
    return not isinstance(error, (FlexError, ApiRefused))
