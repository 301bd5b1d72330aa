"""Optimistic concurrency: reads a node or a pool, changes it and writes it, and retries after a conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aks_flex_node.errors import FlexError
from aks_flex_rp.store.model import Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


ATTEMPTS = 5  # on conflicts with other writers of the node

R = TypeVar("R")
T = TypeVar("T")


async def retry_on_conflict(
    read: Callable[[], Awaitable[R | None]],
    change: Callable[[R | None], Awaitable[T]],
    busy: Callable[[], Exception] | None = None,
    *,
    known: R | None = None,
) -> T:
    """Calls `change` with the record that was read, until it raises no Conflict.

    After the last attempt it raises `busy()`, or the Conflict if `busy` is not given. `known` is a record that the
    caller has already read; it is read again only after a conflict.
    """
    found = await read() if known is None else known
    for left in reversed(range(ATTEMPTS)):
        try:
            return await change(found)
        except Conflict:
            if not left and busy:
                raise busy() from None
            if not left:
                raise
        found = await read()
    raise AssertionError("The last attempt returns or raises.")


def node_busy(key: str) -> FlexError:
    return FlexError(
        "node-operation-in-progress",
        f"Other requests keep changing node {key}.",
        "The operation is retried automatically.",
        retryable=True,
    )
