"""Enrolments of pools, and the machines that have used them.

The rows are authenticated like those of nodes. A machine is written together with its enrolment, whose version
decides: of two writers with the same version, one gets a Conflict, and nothing of its write remains. The version of
a machine that is replaced decides as well: it may belong to another enrolment. A unique index keeps the names of
nodes apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, recorded
from aks_flex_rp.store.model import Conflict
from aks_flex_rp.store.pool_model import MachinePage
from aks_flex_rp.store.signed_tables import ENROLMENTS, MACHINES
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment

SELECT_BY_SECRET = f"{ENROLMENTS.select} WHERE secret = $1"
SELECT_OF_POOL = f"{ENROLMENTS.select} WHERE cluster = $1 AND pool = $2 AND key > $3 ORDER BY key LIMIT $4"
_PAGE = f"{MACHINES.select} WHERE cluster = $1 AND enrolment = $2 AND thumbprint > $3"
_ORDER = "ORDER BY thumbprint LIMIT $4"
SELECT_ENROLLED = f"{_PAGE} AND node <> '' {_ORDER}"
SELECT_UNDECIDED = f"{_PAGE} AND node = '' {_ORDER}"  # waiting, approved or rejected
SELECT_MACHINE_OF_NODE = f"{MACHINES.select} WHERE cluster = $1 AND node = $2 AND node <> ''"
SELECT_MACHINES_OF_SYSTEM = (
    f"{MACHINES.select} WHERE cluster = $1 AND system_uuid = $2 AND system_uuid <> '' AND node <> '' LIMIT 100"
)
COUNT_MACHINES = "SELECT count(*) FROM enrolled_machines WHERE cluster = $1 AND enrolment = $2 AND state = $3"
CREATE = (
    f"INSERT INTO enrolments ({ENROLMENTS.all_columns}) SELECT {ENROLMENTS.casts(1)}"  # noqa: S608 - constants
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
        written = replace(enrolment, version=self._next_version(ENROLMENTS, enrolment, 0))
        conflict = f"The enrolment {enrolment.key} exists, or its pool was deleted."
        await self._write_or_conflict(conflict, CREATE, self._signed(ENROLMENTS, written), *recorded(events))
        return written

    async def put_enrolment(self, enrolment: Enrolment, events: Sequence[AuditEvent] = ()) -> Enrolment:
        """Replaces an enrolment. Raises Conflict if it was changed since it was read."""
        written = replace(enrolment, version=enrolment.version + 1)
        decisive = (*self._signed(ENROLMENTS, written), enrolment.version)
        conflict = f"The enrolment {enrolment.key} was changed since it was read."
        await self._write_or_conflict(conflict, REPLACE, decisive, *recorded(events))
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
        written = replace(machine, version=self._next_version(MACHINES, machine, machine.version))
        values = self._signed(MACHINES, written)
        write = FollowStatement(_replace_machine if replaces else _upsert_machine, values)
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
        text, decisive = REPLACE, (*self._signed(ENROLMENTS, changed), enrolment.version)
        if replaces:
            text = REPLACE_WITH_MACHINE
            decisive = (*decisive, replaces.enrolment, replaces.thumbprint, replaces.version)
        conflict = f"The enrolment {enrolment.key}, or a machine, was changed since it was read."
        await self._write_or_conflict(conflict, text, decisive, machine, *recorded(events))
        return changed

    async def enrolment(self, cluster: str, key: str) -> Enrolment | None:
        return await self._one(ENROLMENTS, ENROLMENTS.select_one, cluster, key)

    async def enrolment_by_secret(self, secret: str) -> Enrolment | None:
        return await self._one(ENROLMENTS, SELECT_BY_SECRET, secret)

    async def enrolments(self, cluster: str, pool: str, after: str = "", limit: int = 100) -> tuple[Enrolment, ...]:
        """Returns enrolments of a pool, ordered by key, without those that are refused."""
        found = await self._read(SELECT_OF_POOL, cluster, pool, after, limit)
        return await self._authentic(ENROLMENTS, found)

    async def machine(self, cluster: str, enrolment: str, thumbprint: str) -> EnrolledMachine | None:
        return await self._one(MACHINES, MACHINES.select_one, cluster, enrolment, thumbprint)

    async def machines(
        self, cluster: str, enrolment: str, after: str = "", limit: int = 100, *, enrolled: bool
    ) -> MachinePage:
        """Returns the machines of an enrolment that have a node, or those that have none, ordered by their keys and
        without those that are refused.
        """
        text = SELECT_ENROLLED if enrolled else SELECT_UNDECIDED
        found = await self._read(text, cluster, enrolment, after, limit + 1)
        last = str(found[limit - 1][2]) if len(found) > limit else None
        return MachinePage(await self._authentic(MACHINES, found[:limit]), last)

    async def machine_of_node(self, cluster: str, node: str) -> EnrolledMachine | None:
        return await self._one(MACHINES, SELECT_MACHINE_OF_NODE, cluster, node)

    async def machines_of_system(self, cluster: str, system_uuid: str) -> tuple[EnrolledMachine, ...]:
        """Returns the machines of a cluster with this system UUID that have a node."""
        found = await self._read(SELECT_MACHINES_OF_SYSTEM, cluster, system_uuid)
        return await self._authentic(MACHINES, found)

    async def count_machines(self, enrolment: Enrolment, state: str) -> int:
        return int((await self._read(COUNT_MACHINES, enrolment.cluster, enrolment.key, state))[0][0])


def _upsert_machine(first: int) -> str:
    replaced = ", ".join(f"{each} = excluded.{each}" for each in (*MACHINES.names[3:], "code"))
    return (
        f"INSERT INTO enrolled_machines ({MACHINES.all_columns}) SELECT {MACHINES.casts(first)} WHERE {IF_DECIDED}"
        f" ON CONFLICT (cluster, enrolment, thumbprint) DO UPDATE SET {replaced}"
    )


def _replace_machine(first: int) -> str:
    sets = ", ".join(f"{name} = ${number}" for number, name in enumerate((*MACHINES.names, "code"), first))
    return (
        f"UPDATE enrolled_machines SET {sets} WHERE cluster = $1 AND enrolment = $11 AND thumbprint = $12"  # noqa: S608 - constants
        f" AND version = $13 AND {IF_DECIDED}"
    )


def _delete_machine(first: int) -> str:
    return (
        f"DELETE FROM enrolled_machines WHERE cluster = $1 AND enrolment = ${first} AND thumbprint = ${first + 1}"  # noqa: S608 - numbers
        f" AND {IF_DECIDED}"
    )
