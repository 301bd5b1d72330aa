"""Finds the rows of the database that are not authentic, and signs those that a person has reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError
from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.crypto.record_codes import CodeState
from aks_flex_rp.key_rotation import ROTATED_TABLES, read_rows
from aks_flex_rp.store import rows, sql
from aks_flex_rp.store.model import AuditAction, AuditEvent
from aks_flex_rp.store.record_authenticator import escaped, first_revision
from aks_flex_rp.store.signed_tables import SIGNED_TABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aks_flex_rp.crypto.record_codes import RecordCodes
    from aks_flex_rp.key_rotation import RotatedTable
    from aks_flex_rp.raw_database import Database, Row
    from aks_flex_rp.store.record_authenticator import SignedRow

LARGEST_NUMBER = 2**62  # half of what a column can contain, so that the service can still count on
PYTHON_TYPES = {"TEXT": str, "BIGINT": int, "INTEGER": int, "DOUBLE PRECISION": float, "BLOB": bytes}
TYPES: dict[str, tuple[type, ...]] = {
    "node": (str, str, str, int, str, str, str, bytes, str, str, str, float, int),
    "deleted node": (str, str, int, str, int),
    **{table.kind: tuple(PYTHON_TYPES[kind] for kind in table.types) for table in SIGNED_TABLES},
}
PARSERS: dict[str, Callable[[Row], object]] = {
    "node": lambda row: rows.node_of((*row[:12], "{}", 0.0, *row[12:])),
    **{table.kind: table.parse for table in SIGNED_TABLES},
}


@dataclass(frozen=True)
class ReviewedRecord:
    kind: str
    cluster: str
    name: str  # of a node, or the key of a cluster
    state: CodeState
    row: Row
    signed: SignedRow
    digest: str  # of the content and the present code

    @property
    def shown_name(self) -> str:
        return escaped(self.name)

    def is_called(self, name: str) -> bool:
        """Returns whether a person means this record, who types what was printed."""
        return name.lower() in {self.name.lower(), self.shown_name.lower()}

    @property
    def content(self) -> dict[str, Any]:
        """Returns the columns for a person, without encrypted values."""
        columns = _table_of(self.kind).columns.split(", ")
        values = (rows.restored(each, "BLOB") for each in self.row)
        shown = (f"{len(each)} bytes" if isinstance(each, bytes) else each for each in values)
        return dict(zip(columns, shown, strict=True))

    @property
    def unusable(self) -> str:
        """Why the service could not use the content, even if it was signed; empty if it can."""
        values = self.signed.values
        if self.signed.problem:
            return self.signed.problem
        wrong = [each for each, kind in zip(values, TYPES[self.kind], strict=True) if not isinstance(each, kind)]
        if wrong:
            return f"the value '{escaped(wrong[0])[:40]}' has a wrong type"
        for each in values:
            if isinstance(each, str) and not each.isprintable():
                return f"the value '{escaped(each)[:40]}' contains control characters"
        # The revision is the last number, and is replaced.
        for each in values[:-1]:
            if isinstance(each, int) and not 0 <= each < LARGEST_NUMBER:
                return f"the number {each} is out of range"
        try:
            if parse := PARSERS.get(self.kind):  # a deleted node has no documents
                parse(self.row)
        except rows.PARSE_ERRORS:
            return "its documents cannot be parsed"
        return ""


def _table_of(kind: str) -> RotatedTable:
    return next(each for each in ROTATED_TABLES if kind in each.kinds)


async def refused_records(database: Database, codes: RecordCodes) -> AsyncIterator[ReviewedRecord]:
    for table in ROTATED_TABLES:
        async for row in read_rows(database, table.select, table.first):
            signed = table.signed(row)
            state = codes.check(signed.kind, signed.values, signed.code)
            if state is not CodeState.VALID or signed.problem:
                state = CodeState.WRONG if signed.problem else state
                digest = codes.digest(signed.kind, (*signed.values, signed.code, signed.problem))
                names = signed.identity[0], "/".join(signed.identity[1:] or signed.identity)
                yield ReviewedRecord(signed.kind, *names, state, tuple(row), signed, digest)


def digest_of_all(codes: RecordCodes, records: Sequence[ReviewedRecord]) -> str:
    return codes.digest("all records", [each.digest for each in records])


async def accept(database: Database, codes: RecordCodes, name: str, digest: str, now: float) -> list[str]:
    """Signs the reviewed content of the record with this name, or of all if it is empty. Returns their names.

    The digest is the one of the reviewed content, so that a record that was changed after the review is refused.
    """
    found = [each async for each in refused_records(database, codes) if not name or each.is_called(name)]
    reviewed = [each for each in found if each.digest == digest] if name else found
    if found and (not reviewed or (not name and digest != digest_of_all(codes, found))):
        raise ConfigError(
            "record-changed",
            f"The digest {digest!r} is not that of {name or 'all refused records'}: the content is not what was "
            "reviewed. Nothing was accepted.",
            "Run `aks-flex-rp records show`, check the content again, and use the digest that it prints.",
        )
    for each in reviewed:
        if why := each.unusable:
            raise ConfigError(
                "record-unusable",
                f"The {each.kind} {each.shown_name} cannot be accepted: {why}. Nothing was accepted.",
                "Stop the service, and restore a backup with `aks-flex-rp restore FILE`.",
            )
    accepted = [each for each in reviewed if await _accept(database, codes, each, now)]
    for each in accepted:
        event = AuditEvent(
            now, "aks-flex-rp records accept", AuditAction.RECORD_ACCEPTED, record_resource(each.signed.identity)
        )
        await database.change(sql.INSERT_EVENT, *rows.event_values(event))
    return [each.shown_name for each in accepted]


async def _accept(database: Database, codes: RecordCodes, record: ReviewedRecord, now: float) -> bool:
    """Signs exactly the reviewed content: if the row was changed meanwhile, the code does not match it.

    The revision is at least the time, which is above what a running service has read, and leaves room to count on.
    """
    table = _table_of(record.kind)
    present, at = record.signed.revision, table.revision
    if at is None:
        code = codes.sign(record.signed.kind, record.signed.values)
        return bool(await database.change(table.accept, *record.row[: table.keys], record.signed.code, code))
    revision = max(first_revision(now), present + 1 if present < LARGEST_NUMBER else 0)
    signed = table.signed((*record.row[:at], revision, *record.row[at + 1 :]))
    code = codes.sign(signed.kind, signed.values)
    return bool(await database.change(table.accept, *record.row[: table.keys], record.signed.code, revision, code))
