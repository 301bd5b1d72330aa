"""Reads of all roll-outs at once, for the dashboard and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.store import rollouts
from aks_flex_rp.store.authenticated_rows import authentic_records
from aks_flex_rp.store.rollout_rows import NODE_COLUMNS, ROLLOUT_COLUMNS
from aks_flex_rp.store.rollouts import Rollouts

if TYPE_CHECKING:
    from aks_flex_rp.store.rollout_model import PoolVersions, StoredRollout, StoredRolloutNode

VERSIONS_PER_READ = 1000

SELECT_EVERY_ACTIVE = f"SELECT {ROLLOUT_COLUMNS} FROM rollouts WHERE active = 1 ORDER BY cluster, pool"  # noqa: S608 - constants
SELECT_FAILED = (
    f"SELECT {NODE_COLUMNS} FROM rollout_nodes WHERE cluster = $1 AND pool = $2 AND rollout = $3"  # noqa: S608 - constants
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


@dataclass(frozen=True)
class ActiveNodes:
    """The nodes of an active roll-out that have the same state."""

    cluster: str
    pool: str
    state: str
    nodes: int
    since: float  # when the last of them changed its state


class RolloutOverview(Rollouts):
    async def rollout_node(self, rollout: StoredRollout, node: str) -> StoredRolloutNode | None:
        keys = (rollout.cluster, rollout.pool, rollout.number, node)
        return await self._first(self._verified_rollout_node, rollouts.SELECT_NODE, *keys)

    async def failed_nodes(self, rollout: StoredRollout, limit: int) -> tuple[StoredRolloutNode, ...]:
        """Returns nodes that failed, also those that were brought back since."""
        found = await self._read(SELECT_FAILED, rollout.cluster, rollout.pool, rollout.number, limit)
        return await authentic_records(self._verified_rollout_node, found)

    async def active_rollouts(self) -> tuple[StoredRollout, ...]:
        """Returns the active roll-outs of all pools."""
        return await authentic_records(self._verified_rollout, await self._read(SELECT_EVERY_ACTIVE))

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
        while found := await self._read(rollouts.SELECT_ALL_VERSIONS, *after, VERSIONS_PER_READ):
            versions += await authentic_records(self._verified_versions, found)
            after = (str(found[-1][0]), str(found[-1][1]))
        return tuple(versions)
