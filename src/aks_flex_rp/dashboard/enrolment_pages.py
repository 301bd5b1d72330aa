"""Pages of enrolments: those of a pool with the form for a new one, and one with its machines and what to decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.allow_lists import AllowListError, parse_allow_list
from aks_flex_node.api.enrolments import TEXT_LIMITS
from aks_flex_node.api.node_summary import join_command
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_request
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.pool_operations import PoolCommands
from aks_flex_rp.resource.enrolment_rules import ACTIVE, enrolment_resource, enrolment_state, machine_resource

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.context import ClusterInfo, RequestContext
    from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment, Pool

MAX_READ, MAX_SHOWN = 2000, 200  # enrolments of a pool
MAX_MACHINES = 500
DEFAULTS = {"maxUses": "10", "hours": "72", "approval": "manual", "names": "{hostname}", "allow": ""}


@dataclass(frozen=True)
class EnrolmentPages:
    pages: PageRenderer
    scopes: DashboardScopes
    commands: EnrolmentCommands

    async def show_all(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit, Operation.READ_ENROLMENT)
        return await self._list(visit, cluster, pool)

    async def create(self, visit: PageRequest) -> Response:
        """Creates an enrolment, and shows its line once."""
        cluster, pool, request = await self._pool(visit, Operation.WRITE_ENROLMENT)
        try:
            made, url = await self.commands.create(cluster, pool, self._body(visit), request)
        except ArmError as error:
            if error.status != 400:
                raise
            problems = [(each.target, each.message) for each in error.details] or [(error.target, error.message)]
            return await self._list(visit, cluster, pool, problems=problems)
        return await self._list(visit, cluster, pool, made=made, line=join_command(url))

    async def show(self, visit: PageRequest) -> Response:
        cluster, pool, _ = await self._pool(visit, Operation.READ_ENROLMENT)
        found = await self.commands.get(cluster, pool.key, visit.incoming.path_params["enrolment"])
        page = await self.commands.machines(found)
        return self.pages.show(
            "enrolment",
            visit,
            **await self._common(visit, cluster, pool),
            enrolment=await self._shown(cluster, found),
            machines=[_machine(each) for each in page.machines[:MAX_MACHINES]],
            more=page.after is not None or len(page.machines) > MAX_MACHINES,
        )

    async def revoke(self, visit: PageRequest) -> Response:
        cluster, pool, request = await self._pool(visit, Operation.WRITE_ENROLMENT)
        key = visit.incoming.path_params["enrolment"]
        await self.commands.revoke(cluster, pool.key, key, request)
        return page_request.redirect(f"{_base(cluster, pool)}/{key}")

    async def decide(self, visit: PageRequest) -> Response:
        cluster, pool, request = await self._pool(visit, Operation.WRITE_ENROLMENT)
        key, shown = visit.incoming.path_params["enrolment"], visit.form.get("fingerprint", "")
        approve = visit.form.get("decision") == "approve"
        await self.commands.decide(cluster, pool.key, key, shown, request, approve=approve)
        return page_request.redirect(f"{_base(cluster, pool)}/{key}")

    async def ask_release(self, visit: PageRequest) -> Response:
        where, cluster, _ = await self.scopes.node(visit, Operation.RELEASE)
        machine = await self.commands.context.store.machine_of_node(cluster.id.key, where.node.lower())
        here_is = ShownCluster(cluster.id, 0, "").node(where.node)
        shown = machine_resource(machine) if machine else None
        return self.pages.show(
            "release", visit, node_name=where.node, cluster=cluster.id, here_is=here_is, machine=shown
        )

    async def release(self, visit: PageRequest) -> Response:
        where, cluster, request = await self.scopes.node(visit, Operation.RELEASE)
        await self.commands.release(cluster, where.node, request)
        return page_request.redirect(ShownCluster(cluster.id, 0, "").node(where.node))

    async def _pool(self, visit: PageRequest, operation: Operation) -> tuple[ClusterInfo, Pool, RequestContext]:
        where, known, request = await self.scopes.pool(visit, operation)
        commands = PoolCommands(self.commands.context)
        return known, await commands.get(known, where.pool.name if where.pool else ""), request

    def _body(self, visit: PageRequest) -> dict[str, Any]:
        """Returns the body of the API for the form. Raises ArmError for what cannot be a number or a list."""
        form = {**DEFAULTS, **visit.form}
        try:
            uses, hours = int(form["maxUses"]), float(form["hours"])
            expires = format_utc(self.commands.context.now() + hours * 3600)
        except (ValueError, OverflowError, OSError):
            message = "The uses and the hours must be numbers."
            raise ArmError(400, "InvalidRequestContent", message, "maxUses") from None
        body: dict[str, Any] = {"maxUses": uses, "expires": expires, "approval": form["approval"]}
        body["nodeName"] = form["names"].strip()
        if form["approval"] == "allowList":
            try:
                body["allow"] = parse_allow_list(form["allow"], "The list")
            except AllowListError as error:
                raise errors.invalid_request([errors.Problem("allow", str(error))]) from None
        return body

    async def _list(
        self,
        visit: PageRequest,
        cluster: ClusterInfo,
        pool: Pool,
        *,
        problems: list[tuple[str, str]] | None = None,
        made: Enrolment | None = None,
        line: str = "",
    ) -> Response:
        store, now = self.commands.context.store, self.commands.context.now()
        found = await store.enrolments(pool.cluster, pool.key, limit=MAX_READ)  # ordered by key, which is random
        newest = sorted(found, key=lambda each: (enrolment_state(each, now) != ACTIVE, -each.created))
        return self.pages.show(
            "enrolments",
            visit,
            **await self._common(visit, cluster, pool),
            enrolments=[await self._shown(cluster, each) for each in newest[:MAX_SHOWN]],
            more=len(newest) > MAX_SHOWN,
            form={**DEFAULTS, **(visit.form if problems else {})},
            problems=problems or [],
            made=await self._shown(cluster, made) if made else None,
            line=line,
        )

    async def _shown(self, cluster: ClusterInfo, enrolment: Enrolment) -> dict[str, Any]:
        waiting = await self.commands.waiting(enrolment)
        return enrolment_resource(enrolment, cluster.id, self.commands.context.now(), waiting)

    async def _common(self, visit: PageRequest, cluster: ClusterInfo, pool: Pool) -> dict[str, Any]:
        return {
            "cluster": ShownCluster(cluster.id, 0, cluster.id.name),
            "pool": pool,
            "base": _base(cluster, pool),
            "may_write": await self.scopes.may(visit, Operation.WRITE_ENROLMENT, cluster.id),
        }


def _machine(machine: EnrolledMachine) -> dict[str, Any]:
    """Returns a machine for the page, with empty texts for what it has not said."""
    shown = machine_resource(machine)
    facts = {**dict.fromkeys(TEXT_LIMITS, ""), **shown.get("facts", {})}
    return {"nodeName": "", "address": "", **shown, "facts": facts}


def _base(cluster: ClusterInfo, pool: Pool) -> str:
    return f"{ShownCluster(cluster.id, 0, '').pool(pool.key)}/enrolments"
