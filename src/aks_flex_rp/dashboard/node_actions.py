"""Actions on a node: a new join command, resuming its updates, and after confirmation the revocation of its key and
its deletion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.api.node_summary import is_paused
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import condition_text, document_diff
from aks_flex_rp.dashboard.node_page import system, unbootstraps_on_delete
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import redirect
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.join_page import ConfigUrlCookie
    from aks_flex_rp.dashboard.page import VisitedNode
    from aks_flex_rp.dashboard.page_request import PageRequest

PAUSED = ("nodeConfig", "updatePolicy", "paused")


@dataclass(frozen=True)
class NodeActions(DashboardPage):
    url_cookie: ConfigUrlCookie

    async def ask_token(self, visit: PageRequest) -> Response:
        return self._token_form(visit, await self.node(visit, Operation.REGENERATE_TOKEN))

    async def renew_token(self, visit: PageRequest) -> Response:
        """Creates a new join command."""
        found = await self.node(visit, Operation.REGENERATE_TOKEN)
        # A form that is sent twice, or by two users, must not revoke the command that was just created.
        if visit.form.get("etag") != found.node.etag:
            return self._token_form(visit, found, 409)
        may_see_secrets = await self.scopes.authorizer.may_see_secrets(visit.caller, found.where, own=False)
        request = replace(found.request, may_see_secrets=may_see_secrets)
        written = await self.arm.nodes.commands.regenerate(found.cluster, found.node.name, request)
        await self.arm.nodes.reports.access_grants.try_ensure_access(found.cluster, written.node, found.request)
        answer = redirect(f"{found.page}/joining")
        if written.url:
            self.url_cookie.give(answer, visit, found.cluster.id.node(found.node.name), written.url)
        return answer

    def _token_form(self, visit: PageRequest, found: VisitedNode, status: int = 200) -> Response:
        return self.pages.show(
            "token",
            visit,
            status=status,
            **found.about,
            joined=found.node.join.is_joined,
            expires=found.node.join.url_expires or 0.0,
            hours=round(self.context.token_seconds / 3600),
            raced=status == 409,
        )

    async def ask_revoke_key(self, visit: PageRequest) -> Response:
        found = await self.node(visit, Operation.REVOKE_KEY)
        enrolment = await self.arm.nodes.keys.open_enrolment(found.cluster, found.node.name)
        return self.pages.show(
            "revoke_key",
            visit,
            **found.about,
            key=found.shown["properties"]["status"].get("nodeKey"),
            enrolment=enrolment,
            pool_page=ShownCluster(found.cluster.id).pool(enrolment.pool) if enrolment else "",
        )

    async def revoke_key(self, visit: PageRequest) -> Response:
        where, cluster, request = await self.scopes.node(visit, Operation.REVOKE_KEY)
        await self.arm.nodes.keys.revoke(cluster, where.node, request)
        return redirect(ShownCluster(cluster.id).node(where.node))

    async def resume(self, visit: PageRequest) -> Response:
        """Resumes the updates of a paused node."""
        found = await self.node(visit, Operation.WRITE)
        node = found.node
        if is_paused(node.effective):
            own = is_paused(node.properties)  # otherwise the pool pauses it
            resumed = document_diff.apply_values(node.properties, {PAUSED: None if own and not node.pool else False})
            order = ({"properties": resumed}, Preconditions(if_match=node.etag), found.request)
            await self.arm.nodes.commands.put(found.cluster, node.name, *order, url=False)
        return redirect(found.page)

    async def ask_delete(self, visit: PageRequest) -> Response:
        return self._delete_form(visit, await self.node(visit, Operation.DELETE))

    async def delete(self, visit: PageRequest) -> Response:
        """Deletes a node after its name is entered."""
        found = await self.node(visit, Operation.DELETE)
        if visit.form.get("name", "").strip().lower() != found.node.key:
            return self._delete_form(visit, found, 400, wrong=True)
        preconditions = Preconditions(if_match=visit.form.get("etag") or '""')
        try:
            await self.arm.nodes.commands.delete(found.cluster, found.node.name, preconditions, found.request)
        except ArmError as error:
            if error.status != 412:
                raise
            return self._delete_form(visit, await self.node(visit, Operation.DELETE), 409, raced=True)
        return redirect(found.page)

    def _delete_form(
        self, visit: PageRequest, found: VisitedNode, status: int = 200, *, wrong: bool = False, raced: bool = False
    ) -> Response:
        node, state = found.node, condition_text.state_of(found.shown["properties"]["status"])
        return self.pages.show(
            "delete",
            visit,
            status=status,
            **found.about,
            leaves=unbootstraps_on_delete(node.effective),
            monitored=node.is_monitored,
            joined=node.join.is_joined,
            silent=state is FleetState.NOT_REPORTING,
            typed=visit.form.get("name", "") if wrong else "",
            wrong=wrong,
            raced=raced,
            system=system(node.system),
        )
