"""Nodes that stopped or resumed sending heartbeats, recorded in one transaction with their notifications.

No request shows that a node is silent, so replicas check for it. The record ensures that one of them notifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.store import outbox
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows
from aks_flex_rp.store.rollouts import signal
from aks_flex_rp.store.sql import compose_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.rows import Row


@dataclass(frozen=True)
class HeartbeatChange:
    """A node that became silent, or resumed its heartbeats, and is not recorded as such yet."""

    cluster: str
    key: str
    name: str
    last_seen: float
    silent: bool  # the state to record
    monitored: bool


def _is_silent(before: str) -> str:
    """Returns the SQL condition for a silent row. `before` is the parameter with the time limit."""
    return f"(monitored = 1 AND last_seen > 0 AND last_seen < {before})"


_SELECT = (
    "SELECT p.cluster, f.key, f.name, f.last_seen, 1 - f.silent, f.monitored"
    " FROM fleet f JOIN cluster_numbers p ON p.number = f.cluster_number"
)
SELECT_SILENT = f"{_SELECT} WHERE f.silent = 0 AND {_is_silent('$1')} LIMIT $2"
SELECT_RESUMED = f"{_SELECT} WHERE f.silent = 1 AND NOT {_is_silent('$1')} LIMIT $2"

RECORD_CHANGE = (
    "UPDATE fleet SET silent = $3 WHERE cluster_number = (SELECT number FROM cluster_numbers WHERE cluster = $1)"  # noqa: S608 - a constant
    " AND key = $2 AND silent <> $3"
    f" AND CASE WHEN {_is_silent('$4')} THEN 1 ELSE 0 END = $3 RETURNING key"
)


def _change_of(row: Row) -> HeartbeatChange:
    cluster, key, name, last_seen, silent, monitored = row
    return HeartbeatChange(cluster, key, name, last_seen, bool(silent), bool(monitored))


class Heartbeats(AuthenticatedRows):
    async def unnoted_silences(self, before: float, limit: int, *, silent: bool) -> tuple[HeartbeatChange, ...]:
        """Returns nodes that became silent, or that resumed.

        `before` is the latest heartbeat time of a silent node.
        """
        return tuple(map(_change_of, await self._read(SELECT_SILENT if silent else SELECT_RESUMED, before, limit)))

    async def note_silence(
        self, silence: HeartbeatChange, before: float, messages: Sequence[OutboxMessage] = ()
    ) -> bool:
        # By the cluster's key, not its number: all writes are sorted in the same order, so they cannot deadlock.
        """Records the change with its messages.

        Returns False if it no longer applies or another replica was faster.
        """
        values = (silence.cluster, silence.key, int(silence.silent), before)
        return bool(await self._write(*compose_write(RECORD_CHANGE, values, signal(), *outbox.enqueue(messages))))
