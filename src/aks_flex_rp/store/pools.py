"""Pools, the revisions of their templates, and the nodes of a pool.

Rows of pools and revisions are authenticated like those of nodes. The nodes of a pool are found by the fleet index.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_rp.store import rows, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, authentic_records, recorded
from aks_flex_rp.store.model import NodePage, RecordRefused
from aks_flex_rp.store.pool_model import PoolCounts
from aks_flex_rp.store.record_authenticator import pool_identity
from aks_flex_rp.store.signed_tables import POOL_REVISIONS, POOLS
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import Pool, PoolRevision
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
