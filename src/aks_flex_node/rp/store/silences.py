"""Nodes that fell silent or were heard again, each noted in one step with what is told of it.

No request of anybody's shows that a node is silent. So it is looked for, and noted node by node: of many replicas
that look, one tells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.rp.store import outbox
from aks_flex_node.rp.store.sql import composed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.rp.store.changes import Change
    from aks_flex_node.rp.store.outbox import Message
    from aks_flex_node.rp.store.rows import Row, Values
    from aks_flex_node.rp.store.sql import Write


@dataclass(frozen=True)
class Silence:
    """A node whose silence began, or ended, without anybody having noted it."""

    cluster: str
    key: str
    name: str
    last_seen: float
    silent: bool  # what it is to be noted as
    monitored: bool


class Silences(Protocol):
    async def unnoted_silences(self, before: float, limit: int, *, silent: bool) -> tuple[Silence, ...]:
        """Those that began, or that ended; `before` is the moment since which a node must have been heard of."""
        ...

    async def note_silence(self, silence: Silence, before: float, messages: Sequence[Message] = ()) -> bool:
        """False when it is no longer so, or another replica was faster; then nothing is told either."""
        ...


def _is_silent(before: str) -> str:
    """Of a row, by the parameter that says since when it must have been heard of."""
    return f"(monitored = 1 AND last_seen > 0 AND last_seen < {before})"


_SELECT = (
    "SELECT p.cluster, f.key, f.name, f.last_seen, 1 - f.silent, f.monitored"
    " FROM fleet f JOIN places p ON p.number = f.place"
)
FALLEN = f"{_SELECT} WHERE f.silent = 0 AND {_is_silent('$1')} LIMIT $2"
HEARD = f"{_SELECT} WHERE f.silent = 1 AND NOT {_is_silent('$1')} LIMIT $2"

NOTE = (
    "UPDATE fleet SET silent = $3 WHERE place = (SELECT number FROM places WHERE cluster = $1)"  # noqa: S608 - a constant
    " AND key = $2 AND silent <> $3"
    f" AND CASE WHEN {_is_silent('$4')} THEN 1 ELSE 0 END = $3 RETURNING key"
)


def _silence(row: Row) -> Silence:
    cluster, key, name, last_seen, silent, monitored = row
    return Silence(cluster, key, name, last_seen, bool(silent), bool(monitored))


class NotedSilences(ABC):
    @abstractmethod
    async def _read(self, text: str, *values: object) -> Sequence[Row]: ...

    @abstractmethod
    async def _write(self, write: Write, values: Values, change: Change | None = None) -> Sequence[Row]: ...

    async def unnoted_silences(self, before: float, limit: int, *, silent: bool) -> tuple[Silence, ...]:
        return tuple(map(_silence, await self._read(FALLEN if silent else HEARD, before, limit)))

    async def note_silence(self, silence: Silence, before: float, messages: Sequence[Message] = ()) -> bool:
        # By the cluster's name and not its number: writes that go together are in one order, whatever they are about.
        about = (silence.cluster, silence.key, int(silence.silent), before)
        return bool(await self._write(*composed(NOTE, about, *outbox.enqueue(messages))))
