"""Actions on a node: a new join command, resuming its updates, and its deletion after its name is entered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.api.node_summary import is_paused
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import condition_text, document_diff, page_request
from aks_flex_rp.dashboard.node_page import system, unbootstraps_on_delete
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.fleet import FleetState

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_rp.dashboard.join_page import ConfigUrlCookie
    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes
    from aks_flex_rp.nodes.access_grants import AccessGrants
    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.nodes.node_key_operations import NodeKeyCommands
    from aks_flex_rp.nodes.queries import NodeQueries
    from aks_flex_rp.store.model import Node

PAUSED = ("nodeConfig", "updatePolicy", "paused")


@dataclass(frozen=True)
class TokenPage:
    """Creates a new join command for a node."""

    pages: PageRenderer
    scopes: DashboardScopes
    queries: NodeQueries
    commands: NodeCommands
    access_grants: AccessGrants
    url_cookie: ConfigUrlCookie

    async def ask(self, page_request: PageRequest) -> Response:
        where, known, _ = await self.scopes.node(page_request, Operation.REGENERATE_TOKEN)
        node, _ = await self.queries.get(known, where.node)
        return self._form(page_request, known, node)

    async def renew(self, visit: PageRequest) -> Response:
        where, known, request = await self.scopes.node(visit, Operation.REGENERATE_TOKEN)
        node, _ = await self.queries.get(known, where.node)
        # A form that is sent twice, or by two users, must not revoke the command that was just created.
        if visit.form.get("etag") != node.etag:
            return self._form(visit, known, node, 409)
        may_see_secrets = await self.scopes.authorizer.may_see_secrets(visit.caller, where, own=False)
        written = await self.commands.regenerate(known, node.name, replace(request, may_see_secrets=may_see_secrets))
        await self.access_grants.try_ensure_access(known, written.node, request)
        answer = page_request.redirect(ShownCluster(known.id, 0, "").node(node.name) + "/joining")
        if written.url:
            self.url_cookie.give(answer, visit, known.id.node(node.name), written.url)
        return answer

    def _form(self, page_request: PageRequest, cluster: ClusterInfo, node: Node, status: int = 200) -> Response:
        return self.pages.show(
            "token",
            page_request,
            status=status,
            node=node,
            cluster=cluster.id,
            here_is=ShownCluster(cluster.id, 0, "").node(node.name),
            joined=node.join.is_joined,
            expires=node.join.url_expires or 0.0,
            hours=round(self.scopes.authorizer.context.token_seconds / 3600),
            raced=status == 409,
        )


@dataclass(frozen=True)
class RevokeKeyPage:
    """Revokes the key of a node after confirmation."""

    pages: PageRenderer
    scopes: DashboardScopes
    queries: NodeQueries
    keys: NodeKeyCommands

    async def ask(self, page_request: PageRequest) -> Response:
        where, known, _ = await self.scopes.node(page_request, Operation.REVOKE_KEY)
        node, shown = await self.queries.get(known, where.node)
        enrolment = await self.keys.open_enrolment(known, node.name)
        return self.pages.show(
            "revoke_key",
            page_request,
            node=node,
            cluster=known.id,
            here_is=ShownCluster(known.id, 0, "").node(node.name),
            key=shown["properties"]["status"].get("nodeKey"),
            enrolment=enrolment,
            pool_page=ShownCluster(known.id, 0, "").pool(enrolment.pool) if enrolment else "",
        )

    async def revoke(self, visit: PageRequest) -> Response:
        where, known, request = await self.scopes.node(visit, Operation.REVOKE_KEY)
        await self.keys.revoke(known, where.node, request)
        return page_request.redirect(ShownCluster(known.id, 0, "").node(where.node))


@dataclass(frozen=True)
class ResumeAction:
    """Resumes the updates of a paused node."""

    scopes: DashboardScopes
    queries: NodeQueries
    commands: NodeCommands

    async def resume(self, visit: PageRequest) -> Response:
        where, known, request = await self.scopes.node(visit, Operation.WRITE)
        node, _ = await self.queries.get(known, where.node)
        if is_paused(node.effective):
            own = is_paused(node.properties)  # otherwise the pool pauses it
            resumed = document_diff.apply_values(node.properties, {PAUSED: None if own and not node.pool else False})
            preconditions = Preconditions(if_match=node.etag)
            await self.commands.put(known, node.name, {"properties": resumed}, preconditions, request, url=False)
        return page_request.redirect(ShownCluster(known.id, 0, "").node(node.name))


@dataclass(frozen=True)
class DeletePage:
    """Deletes a node after confirmation."""

    pages: PageRenderer
    scopes: DashboardScopes
    queries: NodeQueries
    commands: NodeCommands

    async def ask(self, page_request: PageRequest) -> Response:
        where, known, _ = await self.scopes.node(page_request, Operation.DELETE)
        node, shown = await self.queries.get(known, where.node)
        return self._form(page_request, known, node, condition_text.state_of(shown["properties"]["status"]))

    async def remove(self, visit: PageRequest) -> Response:
        where, known, request = await self.scopes.node(visit, Operation.DELETE)
        node, shown = await self.queries.get(known, where.node)
        state = condition_text.state_of(shown["properties"]["status"])
        if visit.form.get("name", "").strip().lower() != node.key:
            return self._form(visit, known, node, state, 400, wrong=True)
        try:
            await self.commands.delete(
                known, node.name, Preconditions(if_match=visit.form.get("etag") or '""'), request
            )
        except ArmError as error:
            if error.status != 412:
                raise
            node, _ = await self.queries.get(known, where.node)
            return self._form(visit, known, node, state, 409, raced=True)
        return page_request.redirect(ShownCluster(known.id, 0, "").node(node.name))

    def _form(
        self,
        page_request: PageRequest,
        cluster: ClusterInfo,
        node: Node,
        state: FleetState,
        status: int = 200,
        *,
        wrong: bool = False,
        raced: bool = False,
    ) -> Response:
        return self.pages.show(
            "delete",
            page_request,
            status=status,
            node=node,
            cluster=cluster.id,
            here_is=ShownCluster(cluster.id, 0, "").node(node.name),
            leaves=unbootstraps_on_delete(node.effective),
            monitored=node.is_monitored,
            joined=node.join.is_joined,
            silent=state is FleetState.NOT_REPORTING,
            typed=page_request.form.get("name", "") if wrong else "",
            wrong=wrong,
            raced=raced,
            system=system(node.system),
        )
