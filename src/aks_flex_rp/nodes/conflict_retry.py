"""Optimistic concurrency, once for all: read, change, write; when somebody else was faster, from the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aks_flex_rp.store.model import Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.store.model import Node

ATTEMPTS = 5  # at a node that others are writing, too

T = TypeVar("T")


async def retry_on_conflict(
    read: Callable[[], Awaitable[Node | None]],
    change: Callable[[Node | None], Awaitable[T]],
    busy: Callable[[], Exception] | None = None,
    *,
    known: Node | None = None,
) -> T:
    """Calls `change` with what is read until it raises no Conflict; raises `busy()` when others never stop,
    or the Conflict without it.

    `known` is what the caller has read already; it is read again only after a conflict.
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
