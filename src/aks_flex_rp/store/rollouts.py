"""Roll-outs, their nodes, the versions of pools, and the lease of the replica that steps the roll-outs.

The rows are authenticated like those of nodes. The version of a roll-out decides: of two writers with the same
version, one gets a Conflict, and nothing of its write remains. Every write of a node that is in an open roll-out
leaves a signal in the same transaction, so that the replica with the lease reads only what changed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from aks_flex_rp.store import outbox, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, recorded, verified_records
from aks_flex_rp.store.pool_model import ActiveNodes, Heartbeat, PoolVersions, RolloutSignal, StateCount
from aks_flex_rp.store.signed_tables import POOL_VERSIONS, ROLLOUT_NODES, ROLLOUTS
from aks_flex_rp.store.sql import IF_DECIDED, FollowStatement, WriteStatement, deletion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.pool_model import Pool, StoredRollout, StoredRolloutNode
    from aks_flex_rp.store.rows import Values

MAX_ROLLOUTS = 50  # ended ones that a pool keeps
NODES_PER_READ = 1000

SELECT_OF_POOL = f"{ROLLOUTS.select} WHERE cluster = $1 AND pool = $2 AND number < $3 ORDER BY number DESC LIMIT $4"
SELECT_ACTIVE = f"{ROLLOUTS.select} WHERE cluster = $1 AND pool = $2 AND active = 1"
SELECT_NODES = (
    f"{ROLLOUT_NODES.select} WHERE cluster = $1 AND pool = $2 AND rollout = $3 AND node > $4 ORDER BY node LIMIT $5"
)
SELECT_SOME_NODES = (
    f"{ROLLOUT_NODES.select} WHERE cluster = $1 AND pool = $2 AND rollout = $3 AND node > $4"
    " AND ($6 = '' OR state = $6) AND (CAST($7 AS BIGINT) < 0 OR wave = $7) ORDER BY node LIMIT $5"
)
COUNT_STATES = (
    "SELECT r.wave, r.state, count(*), SUM(COALESCE(f.silent, 0)) FROM rollout_nodes r"
    " LEFT JOIN fleet f ON f.cluster_number = $4 AND f.key = r.node"
    " WHERE r.cluster = $1 AND r.pool = $2 AND r.rollout = $3 GROUP BY r.wave, r.state ORDER BY r.wave"
)
CREATE = (
    f"INSERT INTO rollouts ({ROLLOUTS.all_columns}) SELECT {ROLLOUTS.casts(1)}"  # noqa: S608 - constants
    " WHERE EXISTS (SELECT 1 FROM pools WHERE cluster = $1 AND key = $2)"
    " AND NOT EXISTS (SELECT 1 FROM rollouts WHERE cluster = $1 AND pool = $2 AND active = 1)"
    " ON CONFLICT DO NOTHING RETURNING key"
)
REPLACE = (
    "UPDATE rollouts SET number = $4, phase = $5, active = $6, open = $7, content = $8, created = $9, version = $10,"
    " code = $11 WHERE cluster = $1 AND pool = $2 AND key = $3 AND version = $12 RETURNING key"
)
DELETE = (
    "DELETE FROM rollouts WHERE cluster = $1 AND pool = $2 AND number = $3 AND active = 0 AND version = $4"
    " RETURNING key"
)
_OF_ROLLOUT = ("cluster", "pool", "rollout")
DELETE_NODES_AND_SIGNALS = (
    deletion("rollout_nodes", *_OF_ROLLOUT),
    deletion("rollout_signals", *_OF_ROLLOUT),
)
PUT_NODE = f"INSERT INTO rollout_nodes ({ROLLOUT_NODES.all_columns}) SELECT {ROLLOUT_NODES.casts(1)}"
# Nodes of roll-outs that were not created: another request was faster, or the process ended.
FORGET_NODES = (
    "DELETE FROM rollout_nodes WHERE cluster = $1 AND pool = $2 AND rollout < $3 AND rollout NOT IN"
    " (SELECT number FROM rollouts WHERE cluster = $1 AND pool = $2)"
)
SELECT_ENDED = (
    f"{ROLLOUTS.select} WHERE cluster = $1 AND pool = $2 AND active = 0"
    f" ORDER BY number DESC LIMIT 100 OFFSET {MAX_ROLLOUTS}"
)

SELECT_VERSIONS_OF_OPEN = "SELECT cluster, pool, key, version FROM rollouts WHERE open = 1"
HEARTBEATS = "SELECT key, last_seen, silent FROM fleet WHERE cluster_number = $1 AND pool = $2"
HEARTBEAT = "SELECT key, last_seen, silent FROM fleet WHERE cluster_number = $1 AND key = $2"
SIGNAL_COLUMNS = "sequence, cluster, pool, rollout, node, override"
SELECT_SIGNALS = f"SELECT {SIGNAL_COLUMNS} FROM rollout_signals ORDER BY sequence LIMIT $1"  # noqa: S608 - constants
DELETE_SIGNAL = "DELETE FROM rollout_signals WHERE sequence = $1"

PUT_VERSIONS = (
    f"INSERT INTO pool_versions ({POOL_VERSIONS.all_columns}) VALUES ($1, $2, $3, $4, $5, $6)"  # noqa: S608 - constants
    " ON CONFLICT (cluster, pool) DO UPDATE SET content = $3, created = $4, version = $5, code = $6"
    " WHERE pool_versions.version = $7 OR pool_versions.created <> $4 RETURNING pool"
)
# A roll-out changes the versions only while no other replica has stepped it.
PUT_DECIDED_VERSIONS = PUT_VERSIONS.replace(
    "VALUES ($1, $2, $3, $4, $5, $6)",
    f"SELECT {POOL_VERSIONS.casts(1)} WHERE EXISTS"  # noqa: S608 - constants
    " (SELECT 1 FROM rollouts WHERE cluster = $1 AND pool = $2 AND number = $8 AND version = $9)",
)

# The lease ends by the clock of the database's clients. Two holders for a moment do no harm: versions decide.
TAKE_LEASE = WriteStatement(
    "INSERT INTO leases (name, holder, until) VALUES ($1, $2, $4)"
    " ON CONFLICT (name) DO UPDATE SET holder = $2, until = $4"
    " WHERE leases.holder = $2 OR leases.until < $3"
    " OR leases.until > CAST($4 AS DOUBLE PRECISION) + 60 RETURNING name"
)
END_LEASE = WriteStatement("DELETE FROM leases WHERE name = $1 AND holder = $2 RETURNING name")


VERSIONS_PER_READ = 1000

SELECT_EVERY_ACTIVE = f"{ROLLOUTS.select} WHERE active = 1 ORDER BY cluster, pool"
SELECT_FAILED = (
    f"{ROLLOUT_NODES.select} WHERE cluster = $1 AND pool = $2 AND rollout = $3"
    " AND cause <> '' AND state <> 'Gone' ORDER BY node LIMIT $4"
)
COUNT_NEWEST = (
    "SELECT r.phase, count(*) FROM rollouts r WHERE r.number ="
    " (SELECT max(o.number) FROM rollouts o WHERE o.cluster = r.cluster AND o.pool = r.pool) GROUP BY r.phase"
)
COUNT_ACTIVE_NODES = (
    "SELECT n.cluster, n.pool, n.state, count(*), max(n.since) FROM rollouts r"
    " JOIN rollout_nodes n ON n.cluster = r.cluster AND n.pool = r.pool AND n.rollout = r.number"
    " WHERE r.active = 1 GROUP BY n.cluster, n.pool, n.state"
)


@cache
def _signal(first: int) -> str:
    return (
        "INSERT INTO rollout_signals (cluster, pool, rollout, node, override)"  # noqa: S608 - constants
        f" SELECT n.cluster, n.pool, n.rollout, n.node, CAST(${first} AS TEXT) FROM rollout_nodes n"
        " JOIN rollouts r ON r.cluster = n.cluster AND r.pool = n.pool AND r.number = n.rollout AND r.open = 1"
        f" WHERE n.cluster = $1 AND n.node = $2 AND {IF_DECIDED}"
    )


def signal(override: str = "") -> FollowStatement:
    """Returns the statement that follows every write of a node. $1 and $2 are its cluster and key."""
    return FollowStatement(_signal, (override,))


@cache
def _put_nodes(first: int, count: int) -> str:
    columns = ROLLOUT_NODES.all_columns
    width = len(columns.split(", "))
    values = ", ".join(f"({ROLLOUT_NODES.casts(first + width * number)})" for number in range(count))
    replaced = ", ".join(f"{each} = excluded.{each}" for each in columns.split(", ")[ROLLOUT_NODES.keys :])
    return (
        f"INSERT INTO rollout_nodes ({columns}) SELECT * FROM (VALUES {values}) AS changed WHERE {IF_DECIDED}"  # noqa: S608 - constants
        f" ON CONFLICT (cluster, pool, rollout, node) DO UPDATE SET {replaced}"
    )


class Rollouts(AuthenticatedRows):
    async def create_rollout(
        self, rollout: StoredRollout, nodes: Sequence[StoredRolloutNode], events: Sequence[AuditEvent] = ()
    ) -> StoredRollout:
        """Creates a roll-out with its nodes. Raises Conflict if it exists, or if the pool has an active one."""
        written = replace(rollout, version=self._next_version(ROLLOUTS, rollout, 0))
        if nodes:  # without their roll-out, they mean nothing
            await self._write_many(PUT_NODE, [self._signed(ROLLOUT_NODES, each) for each in nodes])
        conflict = f"The roll-out {rollout.key} exists, or the pool {rollout.pool} has an active one."
        await self._write_or_conflict(conflict, CREATE, self._signed(ROLLOUTS, written), *recorded(events))
        return written

    async def put_rollout(
        self,
        rollout: StoredRollout,
        nodes: Sequence[StoredRolloutNode] = (),
        events: Sequence[AuditEvent] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> StoredRollout:
        """Replaces a roll-out and writes its changed nodes. Raises Conflict if it was changed since it was read."""
        written = replace(rollout, version=rollout.version + 1)
        follows = [*recorded(events), *outbox.enqueue(messages)]
        if nodes:
            values = tuple(value for each in nodes for value in self._signed(ROLLOUT_NODES, each))
            follows.append(FollowStatement(partial(_put_nodes, count=len(nodes)), values))
        decisive = (*self._signed(ROLLOUTS, written), rollout.version)
        conflict = f"The roll-out {rollout.key} was changed since it was read."
        await self._write_or_conflict(conflict, REPLACE, decisive, *follows)
        return written

    async def delete_rollout(self, rollout: StoredRollout, events: Sequence[AuditEvent] = ()) -> None:
        """Deletes an ended roll-out. Raises Conflict if it was changed, or is active."""
        decisive = (rollout.cluster, rollout.pool, rollout.number, rollout.version)
        conflict = f"The roll-out {rollout.key} was changed since it was read, or is active."
        await self._write_or_conflict(conflict, DELETE, decisive, *DELETE_NODES_AND_SIGNALS, *recorded(events))

    async def rollout(self, cluster: str, pool: str, key: str) -> StoredRollout | None:
        return await self._one(ROLLOUTS, ROLLOUTS.select_one, cluster, pool, key)

    async def active_rollout(self, cluster: str, pool: str) -> StoredRollout | None:
        return await self._one(ROLLOUTS, SELECT_ACTIVE, cluster, pool)

    async def rollouts(
        self, cluster: str, pool: str, before: int = 2**62, limit: int = 100
    ) -> tuple[StoredRollout, ...]:
        """Returns roll-outs of a pool with lower numbers than `before`, the newest first."""
        found = await self._read(SELECT_OF_POOL, cluster, pool, before, limit)
        return await self._authentic(ROLLOUTS, found)

    async def open_rollouts(self) -> dict[tuple[str, str, str], int]:
        """Returns the versions of all roll-outs in which something can still happen, by cluster, pool and key."""
        found = await self._read(SELECT_VERSIONS_OF_OPEN)
        # SQLite also stores text as a version. Such a record is refused when it is read.
        return {(str(row[0]), str(row[1]), str(row[2])): row[3] if isinstance(row[3], int) else -1 for row in found}

    async def heartbeats(self, cluster: str, pool: str) -> dict[str, Heartbeat]:
        """Returns the last heartbeats of the nodes of a pool."""
        found = await self._read(HEARTBEATS, await self._cluster_number(cluster), pool)
        return {str(key): Heartbeat(float(seen), bool(silent)) for key, seen, silent in found}

    async def heartbeat(self, cluster: str, node: str) -> Heartbeat:
        found = await self._read(HEARTBEAT, await self._cluster_number(cluster), node)
        return Heartbeat(float(found[0][1]), bool(found[0][2])) if found else Heartbeat()

    async def rollout_nodes(self, rollout: StoredRollout) -> tuple[StoredRolloutNode, ...]:
        """Returns all nodes of a roll-out. Raises RecordRefused if one of them is not authentic."""
        keys, after = (rollout.cluster, rollout.pool, rollout.number), ""
        nodes: list[StoredRolloutNode] = []
        while found := await self._read(SELECT_NODES, *keys, after, NODES_PER_READ):
            authentic, refused = await verified_records(lambda row: self._verified(ROLLOUT_NODES, row), found)
            if refused:  # without one of its nodes, a roll-out would decide wrongly
                raise refused[0][1]
            nodes += authentic
            after = str(found[-1][3])
        return tuple(nodes)

    async def rollout_node_page(
        self, rollout: StoredRollout, after: str = "", limit: int = 100, *, state: str = "", wave: int = -1
    ) -> tuple[StoredRolloutNode, ...]:
        keys = (rollout.cluster, rollout.pool, rollout.number)
        found = await self._read(SELECT_SOME_NODES, *keys, after, limit, state, wave)
        return await self._authentic(ROLLOUT_NODES, found)

    async def count_states(self, rollout: StoredRollout) -> tuple[StateCount, ...]:
        number = await self._cluster_number(rollout.cluster)
        found = await self._read(COUNT_STATES, rollout.cluster, rollout.pool, rollout.number, number)
        return tuple(
            StateCount(int(wave), str(state), int(nodes), int(offline)) for wave, state, nodes, offline in found
        )

    async def forget_rollouts(self, cluster: str, pool: str, before: int) -> None:
        """Deletes the oldest ended roll-outs above the limit, and nodes of roll-outs that were not created."""
        for row in await self._read(SELECT_ENDED, cluster, pool):
            decisive = (cluster, pool, row[3], row[9])
            await self._write(*sql.compose_write(DELETE, decisive, *DELETE_NODES_AND_SIGNALS))
        await self._write_many(FORGET_NODES, [(cluster, pool, before)], repeatable=True)

    async def rollout_signals(self, limit: int) -> tuple[RolloutSignal, ...]:
        return tuple(RolloutSignal(*row) for row in await self._read(SELECT_SIGNALS, limit))

    async def signals_handled(self, signals: Sequence[RolloutSignal]) -> None:
        if signals:
            await self._write_many(DELETE_SIGNAL, [(each.sequence,) for each in signals], repeatable=True)

    async def pool_versions(self, pool: Pool) -> PoolVersions:
        """Returns the versions of a pool; of version 0 if none are stored."""
        versions = await self._one(POOL_VERSIONS, POOL_VERSIONS.select_one, pool.cluster, pool.key)
        if versions is None or versions.created != pool.created:  # of an earlier pool with this name
            return PoolVersions(pool.cluster, pool.key, pool.created, 0)
        return versions

    async def put_pool_versions(
        self, versions: PoolVersions, events: Sequence[AuditEvent] = (), decided: StoredRollout | None = None
    ) -> PoolVersions:
        """Raises Conflict if they were changed since they were read, or the roll-out that `decided` it was."""
        written = replace(versions, version=self._next_version(POOL_VERSIONS, versions, versions.version))
        values: Values = (*self._signed(POOL_VERSIONS, written), versions.version)
        if decided:
            values = (*values, decided.number, decided.version)
        conflict = f"The versions of the pool {versions.pool} were changed since they were read."
        text = PUT_DECIDED_VERSIONS if decided else PUT_VERSIONS
        await self._write_or_conflict(conflict, text, values, *recorded(events))
        return written

    async def take_lease(self, name: str, holder: str, now: float, seconds: float) -> bool:
        """Takes or renews a lease. Returns False if another holder has it."""
        return bool(await self._write(TAKE_LEASE, (name, holder, now, now + seconds)))

    async def end_lease(self, name: str, holder: str) -> None:
        await self._write(END_LEASE, (name, holder))

    # All roll-outs at once, for the dashboard and the metrics

    async def rollout_node(self, rollout: StoredRollout, node: str) -> StoredRolloutNode | None:
        keys = (rollout.cluster, rollout.pool, rollout.number, node)
        return await self._one(ROLLOUT_NODES, ROLLOUT_NODES.select_one, *keys)

    async def failed_nodes(self, rollout: StoredRollout, limit: int) -> tuple[StoredRolloutNode, ...]:
        """Returns nodes that failed, also those that were brought back since."""
        found = await self._read(SELECT_FAILED, rollout.cluster, rollout.pool, rollout.number, limit)
        return await self._authentic(ROLLOUT_NODES, found)

    async def active_rollouts(self) -> tuple[StoredRollout, ...]:
        """Returns the active roll-outs of all pools."""
        return await self._authentic(ROLLOUTS, await self._read(SELECT_EVERY_ACTIVE))

    async def newest_phases(self) -> dict[str, int]:
        """Returns the number of pools by the phase of their newest roll-out."""
        return {str(phase): int(pools) for phase, pools in await self._read(COUNT_NEWEST)}

    async def active_nodes(self) -> tuple[ActiveNodes, ...]:
        """Counts the nodes of all active roll-outs by state."""
        found = await self._read(COUNT_ACTIVE_NODES)
        return tuple(
            ActiveNodes(str(cluster), str(pool), str(state), int(nodes), float(since))
            for cluster, pool, state, nodes, since in found
        )

    async def all_pool_versions(self) -> tuple[PoolVersions, ...]:
        """Returns the versions of all pools that have had a roll-out."""
        versions: list[PoolVersions] = []
        after = ("", "")
        while found := await self._read(POOL_VERSIONS.select_page, *after, VERSIONS_PER_READ):
            versions += await self._authentic(POOL_VERSIONS, found)
            after = (str(found[-1][0]), str(found[-1][1]))
        return tuple(versions)
