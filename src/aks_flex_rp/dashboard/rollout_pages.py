"""Pages of roll-outs: one with its live progress, confirmations of actions, and lifting the bar of a revision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_request, rollout_view
from aks_flex_rp.dashboard.rollout_view import NODE_LABELS, PHASE_LABELS, RolloutLinks
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.pool_operations import PoolCommands
from aks_flex_rp.rollouts.commands import ORDERS
from aks_flex_rp.rollouts.view import rollout_id
from aks_flex_rp.rollouts.waits import awaited_approval

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.rollouts.commands import RolloutCommands
    from aks_flex_rp.store.pool_model import Pool
    from aks_flex_rp.store.rollout_model import BarredRevision, StoredRollout, StoredRolloutNode

NODES_PER_PAGE = 25
MAX_FAILED = 20  # above the list of all nodes
CONFIRMED = {"abort": "Abort", "reverse": "Reverse", "delete": "Delete"}  # actions with a page that asks before


@dataclass(frozen=True)
class NodeRow:
    node: StoredRolloutNode
    label: str
    offline: bool


@dataclass(frozen=True)
class RolloutPages:
    pages: PageRenderer
    scopes: DashboardScopes
    commands: RolloutCommands

    async def show(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit, Operation.READ_ROLLOUT)
        rollout = await self._rollout(visit, cluster, pool)
        store, shown = self.commands.context.store, ShownCluster(cluster.id, 0, cluster.id.name)
        counts = await store.count_states(rollout)
        newest = await store.rollouts(pool.cluster, pool.key, limit=1)
        link = RolloutLinks(shown.rollout(pool.key, rollout.key), visit.query)
        may_write = await self.scopes.may(visit, Operation.WRITE_ROLLOUT, cluster.id)
        is_newest = bool(newest) and newest[0].number == rollout.number
        return self.pages.show(
            "rollout",
            visit,
            cluster=shown,
            pool=pool,
            rollout=rollout,
            id=rollout_id(cluster.id, rollout),
            here_is=link.path,
            revision=int(rollout.spec["revision"]),
            state_label=PHASE_LABELS[rollout.phase],
            state_since=float(rollout.state.get("since") or rollout.created),
            paused=rollout_view.is_paused(rollout),
            waves=rollout_view.wave_rows(rollout, counts, link),
            failed=await store.failed_nodes(rollout, MAX_FAILED),
            labels=NODE_LABELS,
            max_failed=MAX_FAILED,
            gates=rollout_view.gate_rows(rollout),
            approval=awaited_approval(rollout),
            plan=rollout_view.plan_rows(rollout),
            buttons=rollout_view.buttons(rollout, is_newest=is_newest) if may_write else (),
            may_write=may_write,
            may_audit=await self.scopes.may(visit, Operation.AUDIT, cluster.id),
            link=link,
            **await self._nodes(visit, rollout),
        )

    async def ask(self, visit: PageRequest) -> Response:
        """Asks for a confirmation."""
        cluster, pool, _ = await self._pool(visit, Operation.WRITE_ROLLOUT)
        action = visit.incoming.path_params["action"]
        if action not in CONFIRMED:
            raise _unknown_action(visit)
        rollout = await self._rollout(visit, cluster, pool)
        counts = await self.commands.context.store.count_states(rollout)
        nodes = {state: sum(each.nodes for each in counts if each.state == state) for state in NODE_LABELS}
        shown = ShownCluster(cluster.id, 0, cluster.id.name)
        return self.pages.show(
            "rollout_confirm",
            visit,
            cluster=shown,
            pool=pool,
            rollout=rollout,
            revision=int(rollout.spec["revision"]),
            here_is=shown.rollout(pool.key, rollout.key),
            action=action,
            label=CONFIRMED[action],
            nodes=nodes,
        )

    async def act(self, visit: PageRequest) -> Response:
        """Carries out an action, and returns to the page of the roll-out."""
        cluster, pool, request = await self._pool(visit, Operation.WRITE_ROLLOUT)
        action, name = visit.incoming.path_params["action"], visit.incoming.path_params["rollout"]
        shown = ShownCluster(cluster.id, 0, "")
        if action == "delete":
            await self.commands.delete(cluster, pool.key, name, request)
            return page_request.redirect(shown.pool(pool.key))
        if action not in ORDERS:
            raise _unknown_action(visit)
        gate = visit.form.get("gate", "") if action == "approve" else ""
        done = await self.commands.order(cluster, pool.key, name, action, request, gate)
        return page_request.redirect(shown.rollout(pool.key, done.key))

    async def ask_allow(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit, Operation.WRITE_ROLLOUT)
        barred = await self._barred(visit, pool)
        shown = ShownCluster(cluster.id, 0, cluster.id.name)
        return self.pages.show("revision_allow", visit, cluster=shown, pool=pool, barred=barred)

    async def allow(self, visit: PageRequest) -> Response:
        cluster, pool, request = await self._pool(visit, Operation.WRITE_ROLLOUT)
        barred = await self._barred(visit, pool)
        await self.commands.allow_revision(cluster, pool.key, barred.revision, request)
        return page_request.redirect(ShownCluster(cluster.id, 0, "").pool(pool.key))

    async def _barred(self, visit: PageRequest, pool: Pool) -> BarredRevision:
        number = visit.incoming.path_params["revision"]
        versions = await self.commands.context.store.pool_versions(pool)
        found = next((each for each in versions.barred if str(each.revision) == number), None)
        if found is None:
            message = f"Revision {number[:20]} of the pool '{pool.key}' is not barred."
            raise ArmError(404, "RevisionNotBarred", message, "revision")
        return found

    async def _pool(self, visit: PageRequest, operation: Operation) -> tuple[ClusterInfo, Pool, RequestContext]:
        where, known, request = await self.scopes.pool(visit, operation)
        commands = PoolCommands(self.commands.context)
        return known, await commands.get(known, where.pool.name if where.pool else ""), request

    async def _rollout(self, visit: PageRequest, cluster: ClusterInfo, pool: Pool) -> StoredRollout:
        return await self.commands.get(cluster, pool.key, visit.incoming.path_params["rollout"])

    async def _nodes(self, visit: PageRequest, rollout: StoredRollout) -> dict[str, Any]:
        """Returns a page of the nodes that the query selects. Invalid values are ignored, as in other lists."""
        query, store = visit.query, self.commands.context.store
        wave, state, after = (query.get(name, "") for name in rollout_view.FILTERS)
        number = int(wave) if wave.isascii() and wave.isdigit() and len(wave) < 5 else 0
        chosen = state if state in NODE_LABELS else ""
        after = after if len(after) < 64 and after.isprintable() else ""
        found = await store.rollout_node_page(rollout, after, NODES_PER_PAGE + 1, state=chosen, wave=number - 1)
        shown = found[:NODES_PER_PAGE]
        beats = [await store.heartbeat(rollout.cluster, each.node) for each in shown]
        return {
            "nodes": [
                NodeRow(node, rollout_view.node_label(rollout, node.state), beat.silent)
                for node, beat in zip(shown, beats, strict=True)
            ],
            "next_after": shown[-1].node if len(found) > NODES_PER_PAGE else "",
            "wave": number,
            "node_state": rollout_view.node_label(rollout, chosen) if chosen else "",
            "after": after,
        }


def _unknown_action(visit: PageRequest) -> ArmError:
    return ArmError(404, "NotFound", f"The page {visit.incoming.url.path[:200]} does not exist.")
