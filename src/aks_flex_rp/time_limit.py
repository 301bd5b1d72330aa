"""Limits the time of asynchronous work.

asyncio.wait_for of Python 3.11 and earlier ignores a cancellation at the moment at which the work is done. A task
that is stopped then would never end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")


async def within(
    seconds: float, work: Coroutine[Any, Any, T], discard: Callable[[T], Awaitable[object]] | None = None
) -> T:
    """Returns the result of the work. Raises TimeoutError after that time, when the work has ended.

    `discard` is called with a result that arrives when the caller no longer waits for it.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(0.0, seconds))
    except asyncio.CancelledError:
        await end_task(task, discard)
        raise
    if done:
        return task.result()
    await end_task(task, discard)
    raise asyncio.TimeoutError


async def end_task(task: asyncio.Future[T], discard: Callable[[T], Awaitable[object]] | None = None) -> None:
    """Cancels a task and waits for its end. Calls `discard` with the result that it may have got."""
    task.cancel()  # no effect if it is done
    for result in await asyncio.gather(task, return_exceptions=True):
        if discard and not isinstance(result, BaseException):
            await discard(result)
