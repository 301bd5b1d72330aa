"""The three primitives that each database implements, and rows that are verified as they are read, with an alarm."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from aks_flex_rp.crypto.record_codes import CodeState
from aks_flex_rp.store import fleet, record_authenticator, rows, sql
from aks_flex_rp.store.model import (
    REFUSED_CONDITION,
    AuditAction,
    AuditEvent,
    AuditOutcome,
    Conflict,
    RecordOutdated,
    RecordRefused,
    RecordUnverifiable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aks_flex_rp.store.changes import NodeChange
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.record_authenticator import RecordAuthenticator, SignedRow
    from aks_flex_rp.store.rows import Row, Values
    from aks_flex_rp.store.signed_tables import SignedTable

log = logging.getLogger(__name__)
MARK_REFUSED = (
    f"UPDATE fleet SET problems = '{REFUSED_CONDITION}', cause = $3"  # noqa: S608 - a constant
    " WHERE cluster_number = (SELECT number FROM cluster_numbers WHERE cluster = $1) AND key = $2"
)

T = TypeVar("T")


class AuthenticatedRows(ABC):
    def __init__(self, records: RecordAuthenticator) -> None:
        self._records = records
        self._cluster_numbers: dict[str, int] = {}  # a number never changes

    @abstractmethod
    async def _read(self, text: str, *values: object) -> Sequence[Row]: ...

    @abstractmethod
    async def _write(
        self, write: sql.WriteStatement, values: Values, change: NodeChange | None = None
    ) -> Sequence[Row]:
        """Executes a write and returns the rows of its deciding statement. Without a row, nothing is changed.

        Subscribers are notified when the change is durable, even if the caller was cancelled.
        """
        ...

    @abstractmethod
    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:
        """Executes one statement with many parameter rows, all or nothing. A repeatable one may be executed twice."""
        ...

    async def _write_or_conflict(
        self, conflict: str, decide: str, values: Values, *follows: sql.FollowStatement
    ) -> None:
        """Executes a write. Raises Conflict with this message if it changes nothing."""
        if not await self._write(*sql.compose_write(decide, values, *follows)):
            raise Conflict(conflict)

    async def _cluster_number(self, cluster: str) -> int:
        """Returns the number of a cluster. If two processes create the same number, one of them retries."""
        while (number := self._cluster_numbers.get(cluster)) is None:
            found = await self._read(fleet.SELECT_CLUSTER_NUMBER, cluster) or await self._write(
                fleet.INSERT_CLUSTER_NUMBER, (cluster,)
            )
            if found:
                self._cluster_numbers[cluster] = int(found[0][0])
        return number

    async def record(self, *events: AuditEvent) -> None:
        if events:
            await self._write_many(sql.INSERT_EVENT, [rows.event_values(event) for event in events])

    async def _verified_node(self, row: Row) -> Node | None:
        return await self._parsed(row, record_authenticator.present_node_row, sql.NODE, rows.node_of)

    async def _verified(self, table: SignedTable[T], row: Row) -> T | None:
        return await self._parsed(row, table.read, table.select_one, table.parse)

    async def _one(self, table: SignedTable[T], text: str, *values: object) -> T | None:
        """Returns the record of the first row of a query, if there is one."""
        for row in await self._read(text, *values):
            return await self._verified(table, row)
        return None

    async def _authentic(self, table: SignedTable[T], found: Sequence[Row]) -> tuple[T, ...]:
        """Returns the records of the rows that are authentic."""
        return await authentic_records(lambda row: self._verified(table, row), found)

    def _signed(self, table: SignedTable[T], record: T) -> Values:
        """Returns the row of a record, with its code."""
        columns = table.values(record)
        return (*columns, self._records.sign(table.sign(columns)))

    def _next_version(self, table: SignedTable[T], record: T, version: int) -> int:
        """Returns the version with which a record is written: of a new one, above any that services remember."""
        return version + 1 if version else self._records.new_revision(*table.sign(table.values(record)).identity)

    def _authentic_node(self, row: Row) -> Node | None:
        """Returns the node of a row with a valid code, or None without an alarm."""
        if not self._records.is_authentic(record_authenticator.present_node_row(row)):
            return None
        with suppress(*rows.PARSE_ERRORS):
            return rows.node_of(row)
        return None

    async def _parsed(
        self, row: Row, sign: Callable[[Row], SignedRow], select: str, parse: Callable[[Row], T]
    ) -> T | None:
        """Returns the record of a row that is authentic. One that a person has accepted may have any content."""
        verified = await self._verified_row(row, sign, select)
        if verified is None:
            return None
        try:
            return parse(verified)
        except rows.PARSE_ERRORS:
            signed = sign(verified)
            refused = signed.refused("its content cannot be parsed")
        await self._alarm(refused, signed)
        raise refused

    async def _is_owner_authentic(self, row: Row) -> bool:
        """Returns whether the service wrote the owner of an identity. Otherwise the next sign-in decides again.

        A key that is not present is no attack, and not alarmed.
        """
        signed = record_authenticator.identity_owner_row(row)
        state = self._records.codes.check(signed.kind, signed.values, signed.code)
        if state in {CodeState.WRONG, CodeState.MISSING}:
            await self._alarm(signed.refused("its content does not match its authentication code"), signed)
        return state is CodeState.VALID

    async def _alarm_missing(self, cluster: str, key: str) -> None:
        """Raises the alarm for a node that lists still contain, and whose row was deleted without the service."""
        signed = record_authenticator.SignedRow("node", (cluster, key), ())
        await self._alarm(RecordRefused(signed.shown, "its row was deleted"), signed)

    async def _verified_row(self, row: Row, sign: Callable[[Row], SignedRow], select: str) -> Row | None:
        """Returns the row, or raises the alarm if it is refused.

        A row that is older than one that was read is read again with `select`: two reads may end in the other order.
        The row of the second read is returned then, or None if it was deleted meanwhile.
        """
        signed = sign(row)
        try:
            try:
                self._records.verify(signed)
            except RecordOutdated:
                found = await self._read(select, *(signed.identity if signed.keys is None else signed.keys))
                row = found[0] if found else None
                if row:
                    self._records.verify(sign(row))
        except (RecordRefused, RecordUnverifiable) as error:
            await self._alarm(error, signed)
            raise
        return row

    async def _alarm(self, error: RecordRefused | RecordUnverifiable, signed: SignedRow) -> None:
        refused = isinstance(error, RecordRefused)
        self._records.count("refused" if refused else "unverifiable")
        if self._records.alarms.wait(error.record):
            return
        log.error("%s: %s %s", error.name, error.message, error.hint)
        if not isinstance(error, RecordRefused):
            return
        event = AuditEvent(
            self._records.clock(),
            "aks-flex-rp",
            AuditAction.RECORD_REFUSED,
            self._records.resource(signed.identity),
            outcome=AuditOutcome.DENIED,
            detail={"reason": error.why},
        )
        await self.record(event)
        if len(signed.identity) == 2:
            await self._write_many(MARK_REFUSED, [(*signed.identity, error.message)], repeatable=True)


RefusedRow = tuple["Row", RecordRefused | RecordUnverifiable]


async def verified_records(
    verify: Callable[[Row], Awaitable[T | None]], found: Sequence[Row]
) -> tuple[tuple[T, ...], tuple[RefusedRow, ...]]:
    """Returns the records of the rows that are authentic, and the refused rows, which must not hide the others."""
    records: list[T] = []
    refused: list[RefusedRow] = []
    for row in found:
        try:
            record = await verify(row)
        except (RecordRefused, RecordUnverifiable) as error:
            refused.append((row, error))
        else:
            records += [record] if record is not None else []
    return tuple(records), tuple(refused)


async def authentic_records(verify: Callable[[Row], Awaitable[T | None]], found: Sequence[Row]) -> tuple[T, ...]:
    """Returns the records of the rows that are authentic."""
    return (await verified_records(verify, found))[0]


def recorded(events: Sequence[AuditEvent]) -> tuple[sql.FollowStatement, ...]:
    """Returns the statement that inserts the audit events of a write in the same transaction."""
    return (sql.recorded([rows.event_values(event) for event in events]),) if events else ()
