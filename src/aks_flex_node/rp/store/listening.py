"""A connection to PostgreSQL that does nothing but hear of changes.

It cannot know what was said while it was away. So after each new connection it says that anything may have changed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_node.rp.store.backoff import pauses
from aks_flex_node.rp.store.changes import DEAF, EVERYTHING
from aks_flex_node.rp.store.migrations import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection

    from aks_flex_node.rp.store.changes import Broadcast

ALIVE_SECONDS = 10  # how often a silent connection is asked whether it still is one


class Listener:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], broadcast: Broadcast) -> None:
        self._connect = connect
        self._broadcast = broadcast
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None

    async def start(self) -> None:
        self._connection = connection = await self._listen()
        self._task = asyncio.create_task(self._keep(connection), name="store-listener")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._connection:  # a task that is cancelled before its first step has ended nothing
            self._connection.terminate()

    async def _keep(self, connection: Connection) -> None:
        while True:
            try:
                await until_lost(connection)
            finally:
                connection.terminate()
            self._broadcast.publish([DEAF])
            connection = await self._listen_again()
            self._broadcast.publish([EVERYTHING])

    async def _listen_again(self) -> Connection:
        for pause in pauses():
            with suppress(Exception):  # whatever keeps it away, there is nothing to do but to try again
                return await self._listen()
            await asyncio.sleep(pause)
        raise AssertionError("There is always another pause.")

    async def _listen(self) -> Connection:
        connection = await self._connect()
        try:
            await connection.add_listener(CHANNEL, self._heard)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _heard(self, connection: object, process: int, channel: str, payload: object) -> None:  # noqa: ARG002
        cluster, node, version = json.loads(str(payload))
        self._broadcast.publish([(cluster, node, version)])


async def until_lost(connection: Connection) -> None:
    """A connection can end with a word, or go silent: then only asking shows it."""
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(_: object) -> None:
        if not lost.done():
            lost.set_result(None)

    connection.add_termination_listener(tell)
    while not connection.is_closed():
        # Not wait_for: a cancellation at the moment when the connection ends would be swallowed by that.
        await asyncio.wait([lost], timeout=ALIVE_SECONDS)
        if lost.done():
            return
        try:
            await connection.execute("SELECT 1", timeout=ALIVE_SECONDS)
        except Exception:  # whatever it says, it does not hear any more
            return
