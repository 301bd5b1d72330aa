"""Pages of enrolments: those of a pool with the form for a new one, and one with its machines and what to decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.api.allow_lists import AllowListError, parse_allow_list
from aks_flex_node.api.enrolments import TEXT_LIMITS
from aks_flex_node.api.node_summary import join_command
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.resource.enrolment_rules import ACTIVE, enrolment_resource, enrolment_state, machine_resource

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.page import VisitedPool
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.nodes.enrolment_operations import EnrolmentCommands
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment

MAX_READ, MAX_SHOWN = 2000, 200  # enrolments of a pool
MAX_MACHINES = 500
DEFAULTS = {"maxUses": "10", "hours": "72", "approval": "manual", "names": "{hostname}", "allow": ""}


class EnrolmentPages(DashboardPage):
    @property
    def commands(self) -> EnrolmentCommands:
        return self.arm.enrolments

    async def show_all(self, visit: PageRequest) -> Response:
        return await self._list(visit, await self.pool(visit, Operation.READ_ENROLMENT))

    async def create(self, visit: PageRequest) -> Response:
        """Creates an enrolment, and shows its line once."""
        found = await self.pool(visit, Operation.WRITE_ENROLMENT)
        try:
            made, url = await self.commands.create(found.cluster, found.pool, self._body(visit), found.request)
        except ArmError as error:
            if error.status != 400:
                raise
            problems = [(each.target, each.message) for each in error.details or (error,)]
            return await self._list(visit, found, problems=problems)
        return await self._list(visit, found, made=made, line=join_command(url))

    async def show(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.READ_ENROLMENT)
        enrolment = await self.commands.get(found.cluster, found.pool.key, visit.incoming.path_params["enrolment"])
        page = await self.commands.machines(enrolment)
        return self.pages.show(
            "enrolment",
            visit,
            **await self._common(visit, found),
            enrolment=await self._shown(found.cluster, enrolment),
            machines=[_machine(each) for each in page.machines[:MAX_MACHINES]],
            more=page.after is not None or len(page.machines) > MAX_MACHINES,
        )

    async def revoke(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.WRITE_ENROLMENT)
        key = visit.incoming.path_params["enrolment"]
        await self.commands.revoke(found.cluster, found.pool.key, key, found.request)
        return redirect(f"{found.page}/enrolments/{key}")

    async def decide(self, visit: PageRequest) -> Response:
        found = await self.pool(visit, Operation.WRITE_ENROLMENT)
        key, shown = visit.incoming.path_params["enrolment"], visit.form.get("fingerprint", "")
        approve = visit.form.get("decision") == "approve"
        await self.commands.decide(found.cluster, found.pool.key, key, shown, found.request, approve=approve)
        return redirect(f"{found.page}/enrolments/{key}")

    async def ask_release(self, visit: PageRequest) -> Response:
        where, cluster, _ = await self.scopes.node(visit, Operation.RELEASE)
        machine = await self.store.machine_of_node(cluster.id.key, where.node.lower())
        here_is = ShownCluster(cluster.id).node(where.node)
        shown = machine_resource(machine) if machine else None
        return self.pages.show(
            "release", visit, node_name=where.node, cluster=cluster.id, here_is=here_is, machine=shown
        )

    async def release(self, visit: PageRequest) -> Response:
        where, cluster, request = await self.scopes.node(visit, Operation.RELEASE)
        await self.commands.release(cluster, where.node, request)
        return redirect(ShownCluster(cluster.id).node(where.node))

    def _body(self, visit: PageRequest) -> dict[str, Any]:
        """Returns the body of the API for the form. Raises ArmError for what cannot be a number or a list."""
        form = {**DEFAULTS, **visit.form}
        try:
            uses, hours = int(form["maxUses"]), float(form["hours"])
            expires = format_utc(self.context.now() + hours * 3600)
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
        found: VisitedPool,
        *,
        problems: list[tuple[str, str]] | None = None,
        made: Enrolment | None = None,
        line: str = "",
    ) -> Response:
        # ordered by key, which is random
        enrolments = await self.store.enrolments(found.pool.cluster, found.pool.key, limit=MAX_READ)
        now = self.context.now()
        newest = sorted(enrolments, key=lambda each: (enrolment_state(each, now) != ACTIVE, -each.created))
        return self.pages.show(
            "enrolments",
            visit,
            **await self._common(visit, found),
            enrolments=[await self._shown(found.cluster, each) for each in newest[:MAX_SHOWN]],
            more=len(newest) > MAX_SHOWN,
            form={**DEFAULTS, **(visit.form if problems else {})},
            problems=problems or [],
            made=await self._shown(found.cluster, made) if made else None,
            line=line,
        )

    async def _shown(self, cluster: ClusterInfo, enrolment: Enrolment) -> dict[str, Any]:
        waiting = await self.commands.waiting(enrolment)
        return enrolment_resource(enrolment, cluster.id, self.context.now(), waiting)

    async def _common(self, visit: PageRequest, found: VisitedPool) -> dict[str, Any]:
        may_write = await self.scopes.may(visit, Operation.WRITE_ENROLMENT, found.cluster.id)
        return {**found.about, "base": f"{found.page}/enrolments", "may_write": may_write}


def _machine(machine: EnrolledMachine) -> dict[str, Any]:
    """Returns a machine for the page, with empty texts for what it has not said."""
    shown = machine_resource(machine)
    facts = {**dict.fromkeys(TEXT_LIMITS, ""), **shown.get("facts", {})}
    return {"nodeName": "", "address": "", **shown, "facts": facts}
