"""Pools, the revisions of their templates, the nodes of a pool, its enrolments, and the machines that have used them.

The rows are authenticated like those of nodes. The nodes of a pool are found by the fleet index.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_rp.store import rows, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, authentic_records, recorded
from aks_flex_rp.store.model import Conflict, NodePage, RecordRefused
from aks_flex_rp.store.pool_model import MachinePage, PoolCounts
from aks_flex_rp.store.record_authenticator import pool_identity
from aks_flex_rp.store.signed_tables import ENROLMENTS, MACHINES, POOL_REVISIONS, POOLS
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment, Pool, PoolRevision
    from aks_flex_rp.store.rows import Row


MAX_REVISIONS = 200  # that a pool keeps, besides those that nodes are on or roll-outs need
SELECT_POOLS = f"{POOLS.select} WHERE cluster = $1 AND key > $2 ORDER BY key LIMIT $3"
CREATE_POOL = (
    f"INSERT INTO pools ({POOLS.all_columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"  # noqa: S608 - constants
    " ON CONFLICT (cluster, key) DO NOTHING RETURNING key"
)
REPLACE_POOL = (
    "UPDATE pools SET description = $3, number = $4, template = $5, system_data = $6, created = $7, version = $8,"
    " code = $9 WHERE cluster = $1 AND key = $2 AND version = $10 RETURNING key"
)
DELETE_POOL = (
    "DELETE FROM pools WHERE cluster = $1 AND key = $2 AND version = $3"
    " AND NOT EXISTS (SELECT 1 FROM fleet f JOIN cluster_numbers p ON p.number = f.cluster_number"
    " WHERE p.cluster = $1 AND f.pool = $2) RETURNING key"
)
DELETE_WITH_POOL = tuple(sql.deletion(table, "cluster", "pool") for table in sql.TABLES_OF_POOLS)
SELECT_REVISIONS = (
    f"{POOL_REVISIONS.select} WHERE cluster = $1 AND pool = $2 AND number < $3 ORDER BY number DESC LIMIT $4"
)
SELECT_IN_USE = (
    "SELECT content FROM rollouts WHERE cluster = $1 AND pool = $2 AND open = 1"
    " UNION ALL SELECT content FROM pool_versions WHERE cluster = $1 AND pool = $2"
)

# The rows of the fleet index are not authenticated, so the pool of each node is compared again.
POOL_NODES = (
    f"SELECT {sql.NODE_COLUMNS} FROM fleet f JOIN cluster_numbers p ON p.number = f.cluster_number"  # noqa: S608 - constants
    " JOIN nodes n ON n.cluster = p.cluster AND n.key = f.key"
    f" WHERE f.cluster_number = $1 AND f.pool = $2 AND f.key > $3 AND {sql.NOT_DELETED} ORDER BY f.key LIMIT $4"
)
COUNTS = (
    "SELECT f.pool, count(*), SUM(CASE WHEN f.pool_revision <> p.number THEN 1 ELSE 0 END)"
    " FROM fleet f JOIN pools p ON p.cluster = $2 AND p.key = f.pool WHERE f.cluster_number = $1 AND f.pool > ''"
    " GROUP BY f.pool"
)
COUNT = (
    "SELECT count(*), SUM(CASE WHEN pool_revision <> $3 THEN 1 ELSE 0 END) FROM fleet"
    " WHERE cluster_number = $1 AND pool = $2"
)


class Pools(AuthenticatedRows):
    async def put_pool(
        self, pool: Pool, expected: int | None, revision: PoolRevision | None, events: Sequence[AuditEvent] = ()
    ) -> Pool:
        """Creates a pool (`expected` is None) or replaces it if its version is `expected`, and returns it.

        A new revision of its template, and the audit events, are written in the same transaction. A pool keeps its
        newest MAX_REVISIONS, and those that nodes are on or roll-outs need. Raises Conflict if the version differs,
        or if the pool exists.
        """
        version = self._records.new_revision(*pool_identity(pool.cluster, pool.key))
        written = replace(pool, version=max(version, (expected or 0) + 1))
        values = self._signed(POOLS, written)
        follows = list(recorded(events))
        if revision:
            follows.append(FollowStatement(_insert_revision, self._signed(POOL_REVISIONS, revision)))
            if (oldest := revision.number - MAX_REVISIONS) > 0:
                kept = await self._revisions_in_use(pool)
                follows.append(FollowStatement(partial(_forget_revisions, kept=len(kept)), (oldest, *kept)))
        text = CREATE_POOL if expected is None else REPLACE_POOL
        decisive = values if expected is None else (*values, expected)
        await self._write_or_conflict(f"The pool {pool.key} was changed since it was read.", text, decisive, *follows)
        return written

    async def _revisions_in_use(self, pool: Pool) -> list[int]:
        """Returns the revisions to which open roll-outs bring nodes, and the one on which new nodes start."""
        numbers: list[int] = []
        for (text,) in await self._read(SELECT_IN_USE, pool.cluster, pool.key):
            with suppress(*rows.PARSE_ERRORS):  # rows that are not authentic are refused where they decide
                content = rows.from_json(text)
                numbers.append(int(content["spec"]["revision"] if "spec" in content else content["stable"]))
        return numbers

    async def pool(self, cluster: str, key: str) -> Pool | None:
        """Returns a pool. Raises RecordRefused if it was changed without the service."""
        return await self._one(POOLS, POOLS.select_one, cluster, key)

    async def pools(self, cluster: str, after: str = "", limit: int = 100) -> tuple[Pool, ...]:
        """Returns pools of a cluster, ordered by key, without those that are refused."""
        found = await self._read(SELECT_POOLS, cluster, after, limit)
        return await self._authentic(POOLS, found)

    async def delete_pool(self, pool: Pool, events: Sequence[AuditEvent] = ()) -> None:
        """Deletes a pool with its revisions. Raises Conflict if it was changed, or has nodes."""
        decisive = (pool.cluster, pool.key, pool.version)
        conflict = f"The pool {pool.key} was changed since it was read, or has nodes."
        await self._write_or_conflict(conflict, DELETE_POOL, decisive, *DELETE_WITH_POOL, *recorded(events))

    async def pool_revision(self, pool: Pool, number: int) -> PoolRevision | None:
        found = await self._read(POOL_REVISIONS.select_one, pool.cluster, pool.key, number)
        if found:
            return await self._verified_revision(found[0], pool)
        if number == pool.number:  # the newest is written with the pool, and deleted only with it
            signed = POOL_REVISIONS.sign((pool.cluster, pool.key, number, *[""] * 6))
            refused = signed.refused("its row was deleted")
            await self._alarm(refused, signed)
            raise refused
        return None

    async def pool_revisions(self, pool: Pool, before: int, limit: int = 100) -> tuple[PoolRevision, ...]:
        """Returns revisions with lower numbers than `before`, the newest first."""
        found = await self._read(SELECT_REVISIONS, pool.cluster, pool.key, before, limit)
        return await authentic_records(lambda row: self._verified_revision(row, pool), found)

    async def pool_nodes(self, cluster: str, pool: str, after: str = "", limit: int = 100) -> NodePage:
        """Returns nodes of a pool, ordered by key, without those that are refused."""
        found = await self._read(POOL_NODES, await self._cluster_number(cluster), pool, after, limit + 1)
        nodes = await authentic_records(self._verified_node, found[:limit])
        last = str(found[limit - 1][1]) if len(found) > limit else None
        return NodePage(tuple(each for each in nodes if each.pool and each.pool.name == pool), last)

    async def pool_counts(self, cluster: str) -> dict[str, PoolCounts]:
        """Returns the numbers of nodes by pool, for the pools of a cluster that have nodes."""
        found = await self._read(COUNTS, await self._cluster_number(cluster), cluster)
        return {str(name): PoolCounts(int(nodes), int(pending)) for name, nodes, pending in found}

    async def count_pool(self, pool: Pool) -> PoolCounts:
        number = await self._cluster_number(pool.cluster)
        [(nodes, pending)] = await self._read(COUNT, number, pool.key, pool.number)
        return PoolCounts(int(nodes), int(pending or 0))

    async def _verified_revision(self, row: Row, pool: Pool) -> PoolRevision | None:
        """Returns the revision of a row. One of an earlier pool with this name has a valid code, but is refused."""
        revision = await self._verified(POOL_REVISIONS, row)
        if revision and revision.created != pool.created:
            signed = POOL_REVISIONS.read(row)
            refused = RecordRefused(signed.shown, "it is of an earlier pool with this name")
            await self._alarm(refused, signed)
            raise refused
        return revision


def _forget_revisions(first: int, kept: int) -> str:
    """Returns the statement that deletes old revisions, except those that nodes are on, those to which a roll-out
    would bring nodes back, and `kept` others. $1 and $2 are the pool.
    """
    others = "".join(f" AND number <> CAST(${first + number} AS BIGINT)" for number in range(1, kept + 1))
    return (
        f"DELETE FROM pool_revisions WHERE cluster = $1 AND pool = $2 AND number <= CAST(${first} AS BIGINT)"  # noqa: S608 - constants
        " AND number NOT IN (SELECT f.pool_revision FROM fleet f"
        " JOIN cluster_numbers p ON p.number = f.cluster_number WHERE p.cluster = $1 AND f.pool = $2)"
        " AND number NOT IN (SELECT source FROM rollout_nodes WHERE cluster = $1 AND pool = $2)"
        f"{others} AND {IF_DECIDED}"
    )


def _insert_revision(first: int) -> str:
    columns = POOL_REVISIONS.all_columns
    replaced = ", ".join(f"{each} = excluded.{each}" for each in columns.split(", "))
    return (
        f"INSERT INTO pool_revisions ({columns}) SELECT {POOL_REVISIONS.casts(first)} WHERE {IF_DECIDED}"
        f" ON CONFLICT (cluster, pool, number) DO UPDATE SET {replaced}"
    )


SELECT_BY_SECRET = f"{ENROLMENTS.select} WHERE secret = $1"
SELECT_ENROLMENTS = f"{ENROLMENTS.select} WHERE cluster = $1 AND pool = $2 AND key > $3 ORDER BY key LIMIT $4"
_PAGE = f"{MACHINES.select} WHERE cluster = $1 AND enrolment = $2 AND thumbprint > $3"
_ORDER = "ORDER BY thumbprint LIMIT $4"
SELECT_ENROLLED = f"{_PAGE} AND node <> '' {_ORDER}"
SELECT_UNDECIDED = f"{_PAGE} AND node = '' {_ORDER}"  # waiting, approved or rejected
SELECT_MACHINE_OF_NODE = f"{MACHINES.select} WHERE cluster = $1 AND node = $2 AND node <> ''"
SELECT_MACHINES_OF_SYSTEM = (
    f"{MACHINES.select} WHERE cluster = $1 AND system_uuid = $2 AND system_uuid <> '' AND node <> '' LIMIT 100"
)
COUNT_MACHINES = "SELECT count(*) FROM enrolled_machines WHERE cluster = $1 AND enrolment = $2 AND state = $3"
CREATE_ENROLMENT = (
    f"INSERT INTO enrolments ({ENROLMENTS.all_columns}) SELECT {ENROLMENTS.casts(1)}"  # noqa: S608 - constants
    " WHERE EXISTS (SELECT 1 FROM pools WHERE cluster = $1 AND key = $3)"
    " ON CONFLICT (cluster, key) DO NOTHING RETURNING key"
)
REPLACE_ENROLMENT = (
    "UPDATE enrolments SET pool = $3, secret = $4, uses = $5, content = $6, created = $7, version = $8, code = $9"
    " WHERE cluster = $1 AND key = $2 AND version = $10 RETURNING key"
)
REPLACE_ENROLMENT_WITH_MACHINE = REPLACE_ENROLMENT.replace(
    " RETURNING",
    " AND EXISTS (SELECT 1 FROM enrolled_machines m"
    " WHERE m.cluster = $1 AND m.enrolment = $11 AND m.thumbprint = $12 AND m.version = $13) RETURNING",
)


class Enrolments(AuthenticatedRows):
    """A machine is written together with its enrolment, whose version decides: of two writers with the same version,
    one gets a Conflict, and nothing of its write remains. The version of a machine that is replaced decides as well:
    it may belong to another enrolment. A unique index keeps the names of nodes apart.
    """

    async def create_enrolment(self, enrolment: Enrolment, events: Sequence[AuditEvent] = ()) -> Enrolment:
        """Creates an enrolment. Raises Conflict if it exists, or if its pool does not."""
        written = replace(enrolment, version=self._next_version(ENROLMENTS, enrolment, 0))
        conflict = f"The enrolment {enrolment.key} exists, or its pool was deleted."
        await self._write_or_conflict(
            conflict, CREATE_ENROLMENT, self._signed(ENROLMENTS, written), *recorded(events)
        )
        return written

    async def put_enrolment(self, enrolment: Enrolment, events: Sequence[AuditEvent] = ()) -> Enrolment:
        """Replaces an enrolment. Raises Conflict if it was changed since it was read."""
        written = replace(enrolment, version=enrolment.version + 1)
        decisive = (*self._signed(ENROLMENTS, written), enrolment.version)
        conflict = f"The enrolment {enrolment.key} was changed since it was read."
        await self._write_or_conflict(conflict, REPLACE_ENROLMENT, decisive, *recorded(events))
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
        text, decisive = REPLACE_ENROLMENT, (*self._signed(ENROLMENTS, changed), enrolment.version)
        if replaces:
            text = REPLACE_ENROLMENT_WITH_MACHINE
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
        found = await self._read(SELECT_ENROLMENTS, cluster, pool, after, limit)
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
