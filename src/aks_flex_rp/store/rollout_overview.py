"""Reads of all roll-outs at once, for the dashboard and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.store.rollouts import Rollouts
from aks_flex_rp.store.signed_tables import POOL_VERSIONS, ROLLOUT_NODES, ROLLOUTS

if TYPE_CHECKING:
    from aks_flex_rp.store.rollout_model import PoolVersions, StoredRollout, StoredRolloutNode

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
