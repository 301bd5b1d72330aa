"""Roll-outs on other pages: those of a pool with its barred revisions, the active ones of all pools, a node's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.dashboard.rollout_view import PHASE_LABELS, is_paused, node_place

if TYPE_CHECKING:
    from aks_flex_rp.dashboard.rollout_view import NodePlace
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool
    from aks_flex_rp.store.protocol import Store
    from aks_flex_rp.store.rollout_model import BarredRevision, StoredRollout

MAX_ROLLOUTS = 20  # on the page of a pool


@dataclass(frozen=True)
class RolloutRow:
    """A roll-out in a list."""

    rollout: StoredRollout

    @property
    def label(self) -> str:
        return f"{PHASE_LABELS[self.rollout.phase]}{', paused' if is_paused(self.rollout) else ''}"

    @property
    def revision(self) -> int:
        return int(self.rollout.spec["revision"])

    @property
    def note(self) -> str:
        """Why it ended, or the first thing that it waits for."""
        waits = f"Waits for {self.rollout.waits[0]}" if self.rollout.waits else ""
        return str(self.rollout.state.get("reason", "")) or waits


@dataclass(frozen=True)
class PoolRollouts:
    """The roll-outs of a pool, and what they decided about its revisions."""

    rows: list[RolloutRow]
    more: bool
    active: StoredRollout | None
    stable: int
    barred: tuple[BarredRevision, ...]

    def bars(self, revision: int) -> bool:
        return any(each.revision == revision for each in self.barred)


async def pool_rollouts(store: Store, pool: Pool) -> PoolRollouts:
    found = await store.rollouts(pool.cluster, pool.key, limit=MAX_ROLLOUTS + 1)
    versions = await store.pool_versions(pool)
    return PoolRollouts(
        [RolloutRow(each) for each in found[:MAX_ROLLOUTS]],
        len(found) > MAX_ROLLOUTS,
        next((each for each in found if each.active), None),
        versions.stable or pool.number,
        versions.barred,
    )


@dataclass(frozen=True)
class FleetRollouts:
    """The active roll-outs and the barred revisions of all pools, by cluster and pool."""

    active: dict[tuple[str, str], RolloutRow]
    barred: dict[tuple[str, str, float], int]  # also by the time at which the pool was created

    def of(self, pool: Pool) -> RolloutRow | None:
        return self.active.get((pool.cluster, pool.key))

    def barred_of(self, pool: Pool) -> int:
        return self.barred.get((pool.cluster, pool.key, pool.created), 0)


async def fleet_rollouts(store: Store) -> FleetRollouts:
    active = {(each.cluster, each.pool): RolloutRow(each) for each in await store.active_rollouts()}
    versions = await store.all_pool_versions()
    return FleetRollouts(active, {(each.cluster, each.pool, each.created): len(each.barred) for each in versions})


async def place_of(store: Store, node: Node) -> NodePlace | None:
    """Returns the place of a node in the newest open roll-out of its pool, if it is in one."""
    if node.pool is None:
        return None
    keys = [
        key for cluster, pool, key in await store.open_rollouts() if (cluster, pool) == (node.cluster, node.pool.name)
    ]
    found = [rollout for key in keys if (rollout := await store.rollout(node.cluster, node.pool.name, key))]
    for rollout in sorted(found, key=lambda each: each.number, reverse=True):
        if member := await store.rollout_node(rollout, node.key):
            return node_place(rollout, member)
    return None
