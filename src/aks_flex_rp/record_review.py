"""Finds the rows of the database that are not authentic, and signs those that a person has reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.crypto.record_codes import CodeState
from aks_flex_rp.key_rotation import SIGNED_TABLES, read_rows
from aks_flex_rp.store import rows, sql
from aks_flex_rp.store.model import AuditAction, AuditEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_rp.crypto.record_codes import RecordCodes
    from aks_flex_rp.raw_database import Database, Row
    from aks_flex_rp.store.record_authenticator import SignedRow

STEP = 1_000_000  # so that the accepted revision is above what a running service has read
ACCEPT_NODE = (
    "UPDATE nodes SET revision = $4, code = $5, etag = etag WHERE cluster = $1 AND key = $2 AND revision = $3"
)
ACCEPT_CLUSTER = "UPDATE clusters SET version = $3, code = $4 WHERE key = $1 AND version = $2"


@dataclass(frozen=True)
class ReviewedRecord:
    kind: str
    cluster: str
    name: str  # of a node, or the key of a cluster
    state: CodeState
    row: Row
    signed: SignedRow


async def refused_records(database: Database, codes: RecordCodes) -> AsyncIterator[ReviewedRecord]:
    for table in SIGNED_TABLES:
        async for row in read_rows(database, table.select, table.keys):
            signed = table.signed(row)
            state = codes.check(signed.kind, signed.values, signed.code)
            if state is not CodeState.VALID:
                yield ReviewedRecord(signed.kind, signed.identity[0], signed.identity[-1], state, row, signed)


async def accept(database: Database, codes: RecordCodes, name: str, now: float) -> list[str]:
    """Signs the present content of the records with this name, or of all if it is empty. Returns their names."""
    found = [each async for each in refused_records(database, codes) if name.lower() in {"", each.name}]
    accepted = [each for each in found if await _accept(database, codes, each)]
    for each in accepted:
        event = AuditEvent(
            now, "aks-flex-rp records accept", AuditAction.RECORD_ACCEPTED, record_resource(each.signed.identity)
        )
        await database.change(sql.INSERT_EVENT, *rows.event_values(event))
    return [each.name for each in accepted]


async def _accept(database: Database, codes: RecordCodes, record: ReviewedRecord) -> bool:
    table = next(each for each in SIGNED_TABLES if each.keys == len(record.signed.identity))
    revision = record.signed.revision + STEP
    at = table.revision
    signed = table.signed((*record.row[:at], revision, *record.row[at + 1 :]))
    code = codes.sign(signed.kind, signed.values)
    text = ACCEPT_CLUSTER if table.keys == 1 else ACCEPT_NODE
    return bool(await database.change(text, *signed.identity, record.signed.revision, revision, code))
