"""Outbox of webhook messages, written in the same transaction as the change they report.

One row per message and receiver. A receiver gets the messages about one node in order: later ones wait until the
first was sent, dropped, or rejected by the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from aks_flex_rp.store.authenticated_rows import AuthenticatedRows
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement, WriteStatement, casts

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class OutboxMessage:
    """A message for one receiver."""

    id: str  # the same for all receivers and attempts
    hook: str  # key of the receiver
    cluster: str
    node: str
    at: float
    body: str
    attempts: int = 0  # set by the store, including this one


@dataclass(frozen=True)
class PendingMessages:
    """Pending messages of one receiver."""

    hook: str
    messages: int
    oldest: float
    failure: str  # error of the last attempt


# Statements --------------------------------------------------------------------------------------------------------

_TYPES = ("TEXT", "TEXT", "TEXT", "TEXT", "DOUBLE PRECISION", "TEXT")
_COLUMNS = "id, hook, cluster, node, at, body"


@cache
def _insert(first: int, messages: int) -> str:
    rows = [f"({casts(first + number * len(_TYPES), _TYPES)})" for number in range(messages)]
    return (
        f"INSERT INTO outbox ({_COLUMNS}, due, attempts, refused, failure)"  # noqa: S608 - numbers and types
        " SELECT column1, column2, column3, column4, column5, column6, column5, 0, 0, ''"
        f" FROM (VALUES {', '.join(rows)}) AS messages WHERE {IF_DECIDED}"
    )


def enqueue(messages: Sequence[OutboxMessage]) -> tuple[FollowStatement, ...]:
    """Returns the statement that inserts the messages with the change they report."""
    if not messages:
        return ()
    values = tuple(
        value for each in messages for value in (each.id, each.hook, each.cluster, each.node, each.at, each.body)
    )
    return (FollowStatement(partial(_insert, messages=len(messages)), values),)


# The due time is checked twice: in PostgreSQL the second of two replicas waits for the first and checks again.
CLAIM = WriteStatement(
    "UPDATE outbox SET due = $3, attempts = attempts + 1 WHERE due <= $2 AND sequence IN ("  # noqa: S608 - constants
    " SELECT o.sequence FROM outbox o WHERE o.hook = $1 AND o.due <= $2 AND NOT EXISTS ("
    " SELECT 1 FROM outbox e WHERE e.hook = o.hook AND e.cluster = o.cluster AND e.node = o.node"
    " AND e.sequence < o.sequence AND e.refused = 0) ORDER BY o.due, o.sequence LIMIT $4)"
    f" RETURNING {_COLUMNS}, attempts"
)

SENT = WriteStatement("DELETE FROM outbox WHERE hook = $1 AND id = $2 RETURNING id")

FAILED = WriteStatement(
    "UPDATE outbox SET due = $3, refused = $4, failure = $5 WHERE hook = $1 AND id = $2 RETURNING id"
)

DROP = WriteStatement("DELETE FROM outbox WHERE hook = $1 RETURNING id")

TRIM = WriteStatement(
    "DELETE FROM outbox WHERE hook = $1 AND sequence <= (SELECT sequence FROM outbox WHERE hook = $1"
    " ORDER BY sequence DESC LIMIT 1 OFFSET $2) RETURNING id"
)

FORGET = WriteStatement("DELETE FROM outbox WHERE at < $1 RETURNING id")

PENDING = (
    "SELECT o.hook, count(*), min(o.at), COALESCE((SELECT f.failure FROM outbox f WHERE f.hook = o.hook"
    " AND f.failure <> '' ORDER BY f.due DESC LIMIT 1), '') FROM outbox o GROUP BY o.hook ORDER BY o.hook"
)


class Outbox(AuthenticatedRows):
    async def due_messages(self, webhook: str, now: float, limit: int, lease: float) -> tuple[OutboxMessage, ...]:
        """Claims due messages, at most one per node. Other replicas do not get them for `lease` seconds."""
        found = await self._write(CLAIM, (webhook, now, now + lease, limit))
        return tuple(sorted((OutboxMessage(*row) for row in found), key=lambda each: each.at))

    async def message_sent(self, message: OutboxMessage) -> None:
        await self._write(SENT, (message.hook, message.id))

    async def message_failed(self, message: OutboxMessage, again: float, why: str, *, refused: bool = False) -> None:
        """Schedules the next attempt. A rejected message no longer blocks later ones."""
        await self._write(FAILED, (message.hook, message.id, again, int(refused), why))

    async def drop_messages(self, webhook: str) -> int:
        """Deletes all messages of a receiver and returns their number."""
        return len(await self._write(DROP, (webhook,)))

    async def trim_messages(self, webhook: str, most: int) -> int:
        """Deletes the oldest messages above the limit and returns their number."""
        return len(await self._write(TRIM, (webhook, most)))

    async def forget_messages(self, before: float) -> int:
        """Deletes messages of all receivers that are older than this time and returns their number."""
        return len(await self._write(FORGET, (before,)))

    async def pending_messages(self) -> tuple[PendingMessages, ...]:
        return tuple(PendingMessages(row[0], int(row[1]), float(row[2]), row[3]) for row in await self._read(PENDING))
