"""Enrolments of pools, and the machines that have used them.

The rows are authenticated like those of nodes. A machine is written together with its enrolment, whose version
decides: of two writers with the same version, one gets a Conflict, and nothing of its write remains. The version of
a machine that is replaced decides as well: it may belong to another enrolment. A unique index keeps the names of
nodes apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.store import rows, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, authentic_records, recorded
from aks_flex_rp.store.model import Conflict
from aks_flex_rp.store.pool_model import MachinePage
from aks_flex_rp.store.record_authenticator import (
    enrolment_row,
    machine_row,
    pool_identity,
    signed_enrolment,
    signed_machine,
)
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement, casts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment
    from aks_flex_rp.store.rows import Row, Values

ENROLMENT_COLUMNS = "cluster, key, pool, secret, uses, content, created, version, code"
ENROLMENT_TYPES = ("TEXT", "TEXT", "TEXT", "TEXT", "BIGINT", "TEXT", "DOUBLE PRECISION", "BIGINT", "TEXT")
MACHINE_COLUMNS = "cluster, enrolment, thumbprint, pool, state, node, system_uuid, content, version, code"
MACHINE_TYPES = (*["TEXT"] * 8, "BIGINT", "TEXT")

_ENROLMENTS = f"SELECT {ENROLMENT_COLUMNS} FROM enrolments"  # noqa: S608 - constants
_MACHINES = f"SELECT {MACHINE_COLUMNS} FROM enrolled_machines"  # noqa: S608 - constants
SELECT = f"{_ENROLMENTS} WHERE cluster = $1 AND key = $2"
SELECT_BY_SECRET = f"{_ENROLMENTS} WHERE secret = $1"
SELECT_OF_POOL = f"{_ENROLMENTS} WHERE cluster = $1 AND pool = $2 AND key > $3 ORDER BY key LIMIT $4"
SELECT_ALL = f"{_ENROLMENTS} WHERE (cluster, key) > ($1, $2) ORDER BY cluster, key LIMIT $3"
SELECT_MACHINE = f"{_MACHINES} WHERE cluster = $1 AND enrolment = $2 AND thumbprint = $3"
_PAGE = f"{_MACHINES} WHERE cluster = $1 AND enrolment = $2 AND thumbprint > $3"
_ORDER = "ORDER BY thumbprint LIMIT $4"
SELECT_ENROLLED = f"{_PAGE} AND node <> '' {_ORDER}"
SELECT_UNDECIDED = f"{_PAGE} AND node = '' {_ORDER}"  # waiting, approved or rejected
SELECT_MACHINE_OF_NODE = f"{_MACHINES} WHERE cluster = $1 AND node = $2 AND node <> ''"
SELECT_MACHINES_OF_SYSTEM = (
    f"{_MACHINES} WHERE cluster = $1 AND system_uuid = $2 AND system_uuid <> '' AND node <> '' LIMIT 100"
)
SELECT_ALL_MACHINES = (
    f"{_MACHINES} WHERE (cluster, enrolment, thumbprint) > ($1, $2, $3)"
    " ORDER BY cluster, enrolment, thumbprint LIMIT $4"
)
COUNT_MACHINES = "SELECT count(*) FROM enrolled_machines WHERE cluster = $1 AND enrolment = $2 AND state = $3"
CREATE = (
    f"INSERT INTO enrolments ({ENROLMENT_COLUMNS}) SELECT {casts(1, ENROLMENT_TYPES)}"  # noqa: S608 - constants
    " WHERE EXISTS (SELECT 1 FROM pools WHERE cluster = $1 AND key = $3)"
    " ON CONFLICT (cluster, key) DO NOTHING RETURNING key"
)
REPLACE = (
    "UPDATE enrolments SET pool = $3, secret = $4, uses = $5, content = $6, created = $7, version = $8, code = $9"
    " WHERE cluster = $1 AND key = $2 AND version = $10 RETURNING key"
)
REPLACE_WITH_MACHINE = REPLACE.replace(
    " RETURNING",
    " AND EXISTS (SELECT 1 FROM enrolled_machines m"
    " WHERE m.cluster = $1 AND m.enrolment = $11 AND m.thumbprint = $12 AND m.version = $13) RETURNING",
)


class Enrolments(AuthenticatedRows):
    async def create_enrolment(self, enrolment: Enrolment, events: Sequence[AuditEvent] = ()) -> Enrolment:
        """Creates an enrolment. Raises Conflict if it exists, or if its pool does not."""
        identity = (*pool_identity(enrolment.cluster, enrolment.pool), "enrolments", enrolment.key)
        written = replace(enrolment, version=self._records.new_revision(*identity))
        if not await self._write(*sql.compose_write(CREATE, self._enrolment_values(written), *recorded(events))):
            raise Conflict(f"The enrolment {enrolment.key} exists, or its pool was deleted.")
        return written

    async def put_enrolment(self, enrolment: Enrolment, events: Sequence[AuditEvent] = ()) -> Enrolment:
        """Replaces an enrolment. Raises Conflict if it was changed since it was read."""
        written = replace(enrolment, version=enrolment.version + 1)
        decisive = (*self._enrolment_values(written), enrolment.version)
        if not await self._write(*sql.compose_write(REPLACE, decisive, *recorded(events))):
            raise Conflict(f"The enrolment {enrolment.key} was changed since it was read.")
        return written

    async def put_machine(
        self,
        enrolment: Enrolment,
        machine: EnrolledMachine,
        events: Sequence[AuditEvent] = (),
        replaces: EnrolledMachine | None = None,
    ) -> EnrolledMachine:
        """Writes a machine and its enrolment in one transaction. With `replaces`, it takes the row of that machine.

        Raises Conflict if the enrolment was changed since it was read, or if the replaced machine was.
        """
        identity = signed_machine(rows.machine_values(machine)).identity
        version = machine.version + 1 if machine.version else self._records.new_revision(*identity)
        written = replace(machine, version=version)
        columns = rows.machine_values(written)
        code = self._records.sign(signed_machine(columns))
        write = FollowStatement(_replace_machine if replaces else _upsert_machine, (*columns, code))
        await self._write_both(enrolment, write, events, replaces)
        # Two transactions of PostgreSQL may decide at once. The row is then that of the other one.
        if replaces and await self.machine(machine.cluster, machine.enrolment, machine.thumbprint) != written:
            raise Conflict("The machine that is replaced was changed since it was read.")
        return written

    async def delete_machine(
        self, enrolment: Enrolment, machine: EnrolledMachine, events: Sequence[AuditEvent] = ()
    ) -> Enrolment:
        """Deletes a machine, and writes its enrolment in the same transaction. Raises Conflict like `put_machine`."""
        delete = FollowStatement(_delete_machine, (machine.enrolment, machine.thumbprint))
        return await self._write_both(enrolment, delete, events)

    async def _write_both(
        self,
        enrolment: Enrolment,
        machine: FollowStatement,
        events: Sequence[AuditEvent],
        replaces: EnrolledMachine | None = None,
    ) -> Enrolment:
        changed = replace(enrolment, version=enrolment.version + 1)
        text, decisive = REPLACE, (*self._enrolment_values(changed), enrolment.version)
        if replaces:
            text = REPLACE_WITH_MACHINE
            decisive = (*decisive, replaces.enrolment, replaces.thumbprint, replaces.version)
        if not await self._write(*sql.compose_write(text, decisive, machine, *recorded(events))):
            raise Conflict(f"The enrolment {enrolment.key}, or a machine, was changed since it was read.")
        return changed

    async def enrolment(self, cluster: str, key: str) -> Enrolment | None:
        return await self._first(self._verified_enrolment, SELECT, cluster, key)

    async def enrolment_by_secret(self, secret: str) -> Enrolment | None:
        return await self._first(self._verified_enrolment, SELECT_BY_SECRET, secret)

    async def enrolments(self, cluster: str, pool: str, after: str = "", limit: int = 100) -> tuple[Enrolment, ...]:
        """Returns enrolments of a pool, ordered by key, without those that are refused."""
        found = await self._read(SELECT_OF_POOL, cluster, pool, after, limit)
        return await authentic_records(self._verified_enrolment, found)

    async def machine(self, cluster: str, enrolment: str, thumbprint: str) -> EnrolledMachine | None:
        return await self._first(self._verified_machine, SELECT_MACHINE, cluster, enrolment, thumbprint)

    async def machines(
        self, cluster: str, enrolment: str, after: str = "", limit: int = 100, *, enrolled: bool
    ) -> MachinePage:
        """Returns the machines of an enrolment that have a node, or those that have none, ordered by their keys and
        without those that are refused.
        """
        text = SELECT_ENROLLED if enrolled else SELECT_UNDECIDED
        found = await self._read(text, cluster, enrolment, after, limit + 1)
        last = str(found[limit - 1][2]) if len(found) > limit else None
        return MachinePage(await authentic_records(self._verified_machine, found[:limit]), last)

    async def machine_of_node(self, cluster: str, node: str) -> EnrolledMachine | None:
        return await self._first(self._verified_machine, SELECT_MACHINE_OF_NODE, cluster, node)

    async def machines_of_system(self, cluster: str, system_uuid: str) -> tuple[EnrolledMachine, ...]:
        """Returns the machines of a cluster with this system UUID that have a node."""
        found = await self._read(SELECT_MACHINES_OF_SYSTEM, cluster, system_uuid)
        return await authentic_records(self._verified_machine, found)

    async def count_machines(self, enrolment: Enrolment, state: str) -> int:
        return int((await self._read(COUNT_MACHINES, enrolment.cluster, enrolment.key, state))[0][0])

    def _enrolment_values(self, enrolment: Enrolment) -> Values:
        columns = rows.enrolment_values(enrolment)
        return (*columns, self._records.sign(signed_enrolment(columns)))

    async def _verified_enrolment(self, row: Row) -> Enrolment | None:
        return await self._parsed(row, enrolment_row, SELECT, rows.enrolment_of)

    async def _verified_machine(self, row: Row) -> EnrolledMachine | None:
        return await self._parsed(row, machine_row, SELECT_MACHINE, rows.machine_of)


def _upsert_machine(first: int) -> str:
    replaced = ", ".join(f"{each} = excluded.{each}" for each in MACHINE_COLUMNS.split(", ")[3:])
    return (
        f"INSERT INTO enrolled_machines ({MACHINE_COLUMNS}) SELECT {casts(first, MACHINE_TYPES)} WHERE {IF_DECIDED}"
        f" ON CONFLICT (cluster, enrolment, thumbprint) DO UPDATE SET {replaced}"
    )


def _replace_machine(first: int) -> str:
    columns = MACHINE_COLUMNS.split(", ")
    sets = ", ".join(f"{name} = ${first + index}" for index, name in enumerate(columns))
    return (
        f"UPDATE enrolled_machines SET {sets} WHERE cluster = $1 AND enrolment = $11 AND thumbprint = $12"  # noqa: S608 - constants
        f" AND version = $13 AND {IF_DECIDED}"
    )


def _delete_machine(first: int) -> str:
    return (
        f"DELETE FROM enrolled_machines WHERE cluster = $1 AND enrolment = ${first} AND thumbprint = ${first + 1}"  # noqa: S608 - numbers
        f" AND {IF_DECIDED}"
    )
