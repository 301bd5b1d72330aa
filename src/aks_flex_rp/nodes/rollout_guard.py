"""What roll-outs forbid to every other write: values of barred revisions, and more updates than their budget allows.

A bar lists the values that a failed revision changed, so that another revision with the same values, or a node with
them as its own, is refused as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.arm.errors import ArmError, json_path
from aks_flex_rp.resource.effective import leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_rp.resource.validation import DesiredNode
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Document, Node
    from aks_flex_rp.store.pool_model import BarredRevision, Pool, StoredRollout

BUSY = frozenset({"Updating", "Reversing"})


def find_bar(barred: Sequence[BarredRevision], effective: Document) -> BarredRevision | None:
    """Returns the bar of a template or of effective properties, if they have all values that failed."""
    if not barred:
        return None
    values = {json_path(*path): value for path, value in leaves(effective)}
    return next(
        (
            each
            for each in barred
            if each.values and all(values.get(path) == value for path, value in each.values.items())
        ),
        None,
    )


def revision_barred(pool: str, bar: BarredRevision, name: str = "") -> ArmError:
    what = f"The node '{name}' would get" if name else "The revision has"
    values = ", ".join(f"{path}={value}" for path, value in list(bar.values.items())[:3])
    return ArmError(
        409,
        "RevisionBarred",
        f"{what} what revision {bar.revision} of the pool '{pool}' changed ({values}), and that revision failed in "
        f"the roll-out '{bar.rollout}': {bar.reason[:300]} If it is safe now, allow it with `aks-flex-rp pool "
        f"allow-revision --name {pool} --revision {bar.revision}`.",
    )


def rollout_active(pool: str, rollout: str) -> ArmError:
    return ArmError(
        409,
        "RolloutActive",
        f"The roll-out '{rollout}' of the pool '{pool}' is active. Wait for its end, or end it with `aks-flex-rp "
        f"rollout abort --pool {pool} --name {rollout}`.",
    )


def budget_exceeded(pool: str, rollout: str, busy: int, limit: int) -> ArmError:
    return ArmError(
        409,
        "DisruptionBudgetExceeded",
        f"The roll-out '{rollout}' of the pool '{pool}' allows {limit} unavailable nodes, and {busy} are being "
        "updated. Try again later, or add `--override-rollout` to update this node in spite of it.",
    )


@dataclass(frozen=True)
class RolloutGuard:
    store: Store

    async def bars(self, pool: Pool) -> tuple[BarredRevision, ...]:
        return (await self.store.pool_versions(pool)).barred

    async def check_revision(self, pool: Pool, template: Document) -> None:
        """Raises ArmError if a template has the values of a barred revision."""
        if bar := find_bar(await self.bars(pool), template):
            raise revision_barred(pool.key, bar)

    async def check_apply(self, pool: Pool, names: Sequence[str] | None) -> None:
        """Raises ArmError if the nodes cannot be updated now, because of a roll-out."""
        active = await self.store.active_rollout(pool.cluster, pool.key)
        if active is None:
            return
        if names is None:
            raise rollout_active(pool.key, active.key)
        await self._check_budget(active, len(names))

    async def check_node(self, cluster: str, name: str, desired: DesiredNode, before: Node | None) -> None:
        """Raises ArmError if a write of a node would give it barred values, or exceed the budget of a roll-out."""
        if desired.membership is None:
            return
        effective, earlier = desired.membership.effective, before.effective if before else {}
        pool = await self.store.pool(cluster, desired.membership.name)
        if pool is None or effective == earlier:
            return
        bars = await self.bars(pool)
        bar = find_bar(bars, effective)
        if bar and (before is None or bar != find_bar(bars, earlier)):
            raise revision_barred(pool.key, bar, name)
        if before and before.join.is_joined and before.is_monitored:
            active = await self.store.active_rollout(pool.cluster, pool.key)
            if active:
                await self._check_budget(active, 1)

    async def _check_budget(self, active: StoredRollout, more: int) -> None:
        counts = await self.store.count_states(active)
        busy = sum(each.nodes for each in counts if each.state in BUSY)
        limit = int(active.state.get("limit", 1))
        if busy + more > limit:
            raise budget_exceeded(active.pool, active.key, busy, limit)
