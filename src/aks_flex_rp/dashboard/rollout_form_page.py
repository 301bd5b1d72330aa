"""Form that starts a roll-out of a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_rp.api.rollout_routes import NAME, invalid_name
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_request, rollout_form
from aks_flex_rp.dashboard.edit_form import FieldError
from aks_flex_rp.dashboard.edit_page import EditSheet
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.pool_operations import ALL_REVISIONS, PoolCommands

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.rollouts.commands import RolloutCommands
    from aks_flex_rp.store.pool_model import Pool

MAX_REVISIONS = 50
MAX_NAMES = 200


@dataclass(frozen=True)
class RolloutFormPage:
    pages: PageRenderer
    scopes: DashboardScopes
    commands: RolloutCommands

    async def ask(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit)
        known = await self.commands.context.store.rollouts(pool.cluster, pool.key, limit=MAX_NAMES)
        asked = visit.query.get("revision", "")
        revision = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 16 else pool.number
        name = rollout_form.suggested_name(revision, {each.key for each in known})
        values = {**rollout_form.DEFAULTS, "name": name, "revision": str(revision)}
        return await self._form(visit, cluster, pool, EditSheet(values))

    async def start(self, visit: PageRequest) -> Response:
        """Starts the roll-out of a posted form, or shows the form again with its errors."""
        cluster, pool, request = await self._pool(visit)
        sheet, parsed = EditSheet(rollout_form.posted_values(visit.form)), rollout_form.parse_rollout_form(visit.form)
        if parsed.errors:
            return await self._form(visit, cluster, pool, replace(sheet, errors=tuple(parsed.errors)))
        name = sheet.values["name"].strip()
        try:
            if not NAME.fullmatch(name):
                raise invalid_name(name)
            made, is_new = await self.commands.create(cluster, pool.key, name, parsed.body, request)
        except ArmError as error:
            rejected = replace(sheet, errors=tuple(rollout_form.rejection_errors(error)))
            return await self._form(visit, cluster, pool, rejected, error.status)
        if not is_new and not made.active:
            message = f"The roll-out {name} has ended. Choose another name."
            rejected = replace(sheet, errors=(FieldError("name", message),))
            return await self._form(visit, cluster, pool, rejected, 409)
        return page_request.redirect(ShownCluster(cluster.id, 0, "").rollout(pool.key, made.key))

    async def _pool(self, visit: PageRequest) -> tuple[ClusterInfo, Pool, RequestContext]:
        where, known, request = await self.scopes.pool(visit, Operation.WRITE_ROLLOUT)
        commands = PoolCommands(self.commands.context)
        return known, await commands.get(known, where.pool.name if where.pool else ""), request

    async def _form(
        self, visit: PageRequest, cluster: ClusterInfo, pool: Pool, sheet: EditSheet, status: int = 0
    ) -> Response:
        store = self.commands.context.store
        versions = await store.pool_versions(pool)
        barred = {each.revision for each in versions.barred}
        revisions = await store.pool_revisions(pool, ALL_REVISIONS, MAX_REVISIONS)
        return self.pages.show(
            "rollout_form",
            visit,
            status=status or (400 if sheet.errors else 200),
            cluster=ShownCluster(cluster.id, 0, cluster.id.name),
            pool=pool,
            counts=await PoolCommands(self.commands.context).counts(pool),
            revisions=revisions,
            barred=barred,
            active=await store.active_rollout(pool.cluster, pool.key),
            sheet=sheet,
            values=sheet.values,
        )
