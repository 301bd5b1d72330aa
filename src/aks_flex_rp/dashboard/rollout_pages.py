"""Pages of roll-outs: one with its live progress, confirmations of actions, lifting the bar of a revision, and the
form that starts one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.api.pool_routes import check_name
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import rollout_form, rollout_view
from aks_flex_rp.dashboard.fleet_page import QueryLinks
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import digits, redirect
from aks_flex_rp.dashboard.rollout_view import NODE_LABELS, PHASE_LABELS
from aks_flex_rp.dashboard.setting_fields import FieldError, FormSheet
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS
from aks_flex_rp.rollouts.commands import ORDERS
from aks_flex_rp.rollouts.states import state_of
from aks_flex_rp.rollouts.view import rollout_id
from aks_flex_rp.rollouts.waits import awaited_approval

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page import VisitedPool
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.rollouts.commands import RolloutCommands
    from aks_flex_rp.store.pool_model import BarredRevision, Pool, StoredRollout, StoredRolloutNode

NODES_PER_PAGE = 25
MAX_REVISIONS = 50
MAX_NAMES = 200
MAX_FAILED = 20  # above the list of all nodes
CONFIRMED = {"abort": "Abort", "reverse": "Reverse", "delete": "Delete"}  # actions with a page that asks before


@dataclass(frozen=True)
class NodeRow:
    node: StoredRolloutNode
    label: str
    offline: bool


class RolloutPages(DashboardPage):
    @property
    def commands(self) -> RolloutCommands:
        return self.arm.rollouts

    async def show(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.READ_ROLLOUT)
        pool, cluster_id, rollout = found.pool, found.cluster.id, await self._rollout(visit, found)
        counts = await self.store.count_states(rollout)
        newest = await self.store.rollouts(pool.cluster, pool.key, limit=1)
        link = QueryLinks(found.shown_cluster.rollout(pool.key, rollout.key), visit.query, "after", "#nodes")
        may_write = await self.scopes.may(visit, Operation.WRITE_ROLLOUT, cluster_id)
        is_newest = bool(newest) and newest[0].number == rollout.number
        return self.pages.show(
            "rollout",
            visit,
            **found.about,
            rollout=rollout,
            id=rollout_id(cluster_id, rollout),
            here_is=link.path,
            revision=int(rollout.spec["revision"]),
            state_label=PHASE_LABELS[rollout.phase],
            state=state_of(rollout.state),
            paused=rollout_view.is_paused(rollout),
            waves=rollout_view.wave_rows(rollout, counts, link),
            failed=await self.store.failed_nodes(rollout, MAX_FAILED),
            labels=NODE_LABELS,
            max_failed=MAX_FAILED,
            gate_kinds=rollout_view.gate_kinds(rollout),
            approval=awaited_approval(rollout),
            plan=rollout_view.plan_rows(rollout),
            buttons=rollout_view.buttons(rollout, is_newest=is_newest) if may_write else (),
            may_write=may_write,
            may_audit=await self.scopes.may(visit, Operation.AUDIT, cluster_id),
            link=link,
            **await self._nodes(visit, rollout),
        )

    async def ask(self, visit: PageRequest) -> Response:
        """Asks for a confirmation."""
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        action = visit.incoming.path_params["action"]
        if action not in CONFIRMED:
            raise _unknown_action(visit)
        rollout = await self._rollout(visit, found)
        counts = await self.store.count_states(rollout)
        return self.pages.show(
            "rollout_confirm",
            visit,
            **found.about,
            rollout=rollout,
            revision=int(rollout.spec["revision"]),
            here_is=found.shown_cluster.rollout(found.pool.key, rollout.key),
            action=action,
            label=CONFIRMED[action],
            nodes={state: sum(each.nodes for each in counts if each.state == state) for state in NODE_LABELS},
        )

    async def act(self, visit: PageRequest) -> Response:
        """Carries out an action, and returns to the page of the roll-out."""
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        action, name = visit.incoming.path_params["action"], visit.incoming.path_params["rollout"]
        if action == "delete":
            await self.commands.delete(found.cluster, found.pool.key, name, found.request)
            return redirect(found.page)
        if action not in ORDERS:
            raise _unknown_action(visit)
        gate = visit.form.get("gate", "") if action == "approve" else ""
        done = await self.commands.order(found.cluster, found.pool.key, name, action, found.request, gate)
        return redirect(found.shown_cluster.rollout(found.pool.key, done.key))

    async def ask_allow(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        barred = await self._barred(visit, found.pool)
        return self.pages.show("revision_allow", visit, **found.about, barred=barred)

    async def allow(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        barred = await self._barred(visit, found.pool)
        await self.commands.allow_revision(found.cluster, found.pool.key, barred.revision, found.request)
        return redirect(found.page)

    async def ask_start(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        pool = found.pool
        known = await self.store.rollouts(pool.cluster, pool.key, limit=MAX_NAMES)
        revision = digits(visit.query.get("revision", ""), 15) or pool.number
        name = rollout_form.suggested_name(revision, {each.key for each in known})
        values = {**rollout_form.DEFAULTS, "name": name, "revision": str(revision)}
        return await self._start_form(visit, found, FormSheet(values))

    async def start(self, visit: PageRequest) -> Response:
        """Starts the roll-out of a posted form, or shows the form again with its errors."""
        found = await self.pool(visit, Operation.WRITE_ROLLOUT)
        sheet, parsed = FormSheet(rollout_form.posted_values(visit.form)), rollout_form.parse_rollout_form(visit.form)
        if parsed.errors:
            return await self._start_form(visit, found, replace(sheet, errors=tuple(parsed.errors)))
        name = sheet.values["name"].strip()
        try:
            check_name(name)
            made, is_new = await self.commands.create(
                found.cluster, found.pool.key, name, parsed.document, found.request
            )
        except ArmError as error:
            rejected = replace(sheet, errors=tuple(rollout_form.rejection_errors(error)))
            return await self._start_form(visit, found, rejected, error.status)
        if not is_new and not made.active:
            message = f"The roll-out {name} has ended. Choose another name."
            rejected = replace(sheet, errors=(FieldError("name", message),))
            return await self._start_form(visit, found, rejected, 409)
        return redirect(found.shown_cluster.rollout(found.pool.key, made.key))

    async def _start_form(
        self, visit: PageRequest, found: VisitedPool, sheet: FormSheet, status: int = 0
    ) -> Response:
        pool = found.pool
        versions = await self.store.pool_versions(pool)
        return self.pages.show(
            "rollout_form",
            visit,
            status=status or (400 if sheet.errors else 200),
            **found.about,
            counts=await self.store.count_pool(pool),
            revisions=await self.store.pool_revisions(pool, ALL_REVISIONS, MAX_REVISIONS),
            barred={each.revision for each in versions.barred},
            active=await self.store.active_rollout(pool.cluster, pool.key),
            groups=rollout_form.GROUPS,
            replaces=rollout_form.FIELDS["replaceActive"],
            sheet=sheet,
            values=sheet.values,
        )

    async def _barred(self, visit: PageRequest, pool: Pool) -> BarredRevision:
        number = visit.incoming.path_params["revision"]
        versions = await self.store.pool_versions(pool)
        found = next((each for each in versions.barred if str(each.revision) == number), None)
        if found is None:
            message = f"Revision {number[:20]} of the pool '{pool.key}' is not barred."
            raise ArmError(404, "RevisionNotBarred", message, "revision")
        return found

    async def _rollout(self, visit: PageRequest, found: VisitedPool) -> StoredRollout:
        return await self.commands.get(found.cluster, found.pool.key, visit.incoming.path_params["rollout"])

    async def _nodes(self, visit: PageRequest, rollout: StoredRollout) -> dict[str, Any]:
        """Returns a page of the nodes that the query selects. Invalid values are ignored, as in other lists."""
        query, store = visit.query, self.store
        wave, state, after = (query.get(name, "") for name in rollout_view.FILTERS)
        number = digits(wave, 4)
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
