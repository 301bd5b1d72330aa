"""Authenticates the rows that decide what runs on nodes and who signs in: nodes, clusters and sessions.

Every such row has a code over its identity and content (see `record_codes`). A row that a database
administrator changed, copied from another row or added is refused. An earlier content of a row has a valid code, so
each service also remembers the highest revision that it has read.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.bounded_memory import BoundedCache, Throttle
from aks_flex_rp.crypto.record_codes import CodeState
from aks_flex_rp.node_keys import tombstone_identity
from aks_flex_rp.store.model import RecordOutdated, RecordRefused, RecordUnverifiable
from aks_flex_rp.store.rows import PARSE_ERRORS, keys_of, restored, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.crypto.record_codes import RecordCodes
    from aks_flex_rp.store.rows import Row

FLOAT = "DOUBLE PRECISION"
ALARM_SECONDS = 600.0  # between alarms of one record
MAX_ALARMED_RECORDS = 20_000
ACCEPTABLE_KINDS = frozenset({"node", "deleted node", "cluster"})  # by `aks-flex-rp records accept`
POOLS = "flexNodePools"
MAX_KNOWN_RECORDS = 500_000  # whose revision is remembered


@dataclass(frozen=True)
class SignedRow:
    """The signed part of a row."""

    kind: str
    identity: tuple[str, ...]
    values: tuple[object, ...]
    revision: int = 0  # 0 if the row never changes
    code: str = ""
    problem: str = ""  # why the row is refused, whatever its code
    keys: tuple[object, ...] | None = None  # that select the row; its identity if None

    @property
    def shown(self) -> str:
        return escaped(f"{self.kind} {'/'.join(self.identity)}")

    def refused(self, why: str) -> RecordRefused:
        """Returns the error of a record that was changed without the service."""
        name = shlex.quote(escaped(self.identity[-1])) if self.kind in ACCEPTABLE_KINDS else ""
        return RecordRefused(self.shown, why, name)


def escaped(value: object) -> str:
    """Returns a value from the database for a terminal or a log: everything but printable ASCII is escaped.

    Control characters could hide other output, and characters that are written from right to left could reorder it.
    """
    return "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in str(value))


def signed_node(values: Sequence[Any], revision: int, code: str = "") -> SignedRow:
    """Returns the signed part of a node: the columns that a write sets, and the revision."""
    *names, secrets, system, join, identity, created = storable(values)
    content = (
        *names,
        restored(secrets, "BLOB"),
        system,
        join,
        identity,
        restored(created, FLOAT),
        revision,
    )
    return SignedRow("node", (str(names[0]), str(names[1])), content, revision, code)


def signed_tombstone(cluster: str, key: str, version: int, identity: str, revision: int, code: str = "") -> SignedRow:
    content = storable((cluster, key, version, identity, revision))
    return SignedRow("deleted node", (str(cluster), str(key)), content, revision, code)


def signed_session(values: Sequence[Any], code: str = "") -> SignedRow:
    """Returns the signed part of a session: all but the time of the last request."""
    name, caller, proof, expires, _used, checked, refresh = storable(values)
    content = (
        name,
        caller,
        proof,
        restored(expires, FLOAT),
        restored(checked, FLOAT),
        refresh,
    )
    return SignedRow("session", (str(name),), content, code=code)


def signed_identity_owner(values: Sequence[Any], code: str = "") -> SignedRow:
    return SignedRow("identity owner", (str(values[0]),), storable(values), 0, code)


def pool_identity(cluster: str, key: str) -> tuple[str, ...]:
    """Returns the identity of a pool, which must differ from that of a node with the same name."""
    return (cluster, POOLS, key)


def identity_owner_row(row: Row) -> SignedRow:
    return signed_identity_owner(row[:4], row[4])


def session_row(row: Row) -> SignedRow:
    return signed_session(row[:7], row[7])


def present_node_row(row: Row) -> SignedRow:
    """Returns the signed part of a row with the columns of a node (`sql.NODE_COLUMNS`)."""
    return node_row((*row[:12], row[14], row[16], row[15]))


def node_row(row: Row) -> SignedRow:
    """Returns the signed part of a row with `sql.SIGNED_NODE_COLUMNS`, of a node or a deleted one.

    The code covers `gone` by the kind of the row. Any other value than 0 and 1 would be neither in SQL, so it is
    refused.
    """
    *values, revision, gone, code = row
    if is_deleted(gone):
        return signed_tombstone(row[0], row[1], row[3], row[10], revision, code)
    signed = signed_node(values, revision, code)
    if type(gone) is int and gone == 0:
        return signed
    return replace(signed, problem="its mark of a deletion (gone) is neither 0 nor 1")


def is_deleted(gone: object) -> bool:
    """Returns whether the column `gone` marks a deleted node. SQLite stores any type, and all others are refused."""
    return type(gone) is int and gone == 1


def first_revision(now: float) -> int:
    """Returns a revision above those of any earlier row of the same name, which services may remember."""
    return int(now * 1_000_000)


class RecordAuthenticator:
    def __init__(
        self,
        codes: RecordCodes,
        count: Callable[[str], None] = lambda _: None,
        *,
        resource: Callable[[tuple[str, ...]], str] = "/".join,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`count` is told of each refused record. `resource` returns its resource ID for the audit log."""
        self.codes, self.count, self.resource, self.clock = codes, count, resource, clock
        # The record that was read least recently is forgotten first: a contributor can create any number.
        self.newest: BoundedCache[tuple[str, ...], int] = BoundedCache(MAX_KNOWN_RECORDS)
        self.alarms = Throttle(ALARM_SECONDS, clock, MAX_ALARMED_RECORDS)

    def sign(self, row: SignedRow) -> str:
        return self.codes.sign(row.kind, row.values)

    def verify(self, row: SignedRow) -> None:
        """Raises RecordRefused, or RecordUnverifiable if the key of the code is not present."""
        if row.problem:
            raise row.refused(row.problem)
        state = self.codes.check(row.kind, row.values, row.code)
        if state is CodeState.UNKNOWN_KEY:
            raise RecordUnverifiable(row.shown)
        if state is CodeState.WRONG:
            raise row.refused("its content does not match its authentication code")
        if state is CodeState.MISSING:
            raise row.refused("it has no authentication code")
        if not isinstance(row.revision, int):
            raise row.refused("its revision is not a number")
        if row.revision < self.newest.get(row.identity, 0):
            raise RecordOutdated(row.shown)
        if row.revision:
            self.newest[row.identity] = row.revision

    def has_valid_code(self, row: SignedRow) -> bool:
        return self.codes.check(row.kind, row.values, row.code) is CodeState.VALID

    def is_authentic(self, row: SignedRow) -> bool:
        return not row.problem and self.has_valid_code(row)

    def last_values(self, row: Row) -> tuple[int, str, int]:
        """Returns the version and identity that the row of a deleted node keeps, with its key, and its revision.

        A row that is not authentic contains what an attacker chose, so nothing of it is kept.
        """
        try:
            self.verify(node_row(row))
        except (RecordRefused, RecordUnverifiable):
            return int(self.clock()), "", self.new_revision(str(row[0]), str(row[1]))
        with suppress(*PARSE_ERRORS):
            return row[3], tombstone_identity(row[10], keys_of(row[9])), row[12] + 1
        return row[3], row[10], row[12] + 1

    def new_revision(self, *identity: str) -> int:
        """Returns a revision above what any service has read of a row that is missing or not authentic."""
        return max(first_revision(self.clock()), self.newest.get(identity, 0) + 1)
