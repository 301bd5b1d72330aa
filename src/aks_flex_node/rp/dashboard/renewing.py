"""A new join command for a node: the earlier URL and token are dead then, and the new one is shown once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.rp.dashboard import visits
from aks_flex_node.rp.dashboard.scopes import Shown

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.joining_commands import Handing
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known
    from aks_flex_node.rp.nodes.granting import Granting
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.nodes.writing import Writing
    from aks_flex_node.rp.store.store import Node


@dataclass(frozen=True)
class Renewing:
    pages: Pages
    scopes: Scopes
    reading: Reading
    writing: Writing
    granting: Granting
    handing: Handing

    async def ask(self, visit: Visit) -> Response:
        where, known, _ = await self.scopes.node(visit, "regenerateToken")
        node, _ = await self.reading.get(known, where.node)
        return self._form(visit, known, node)

    async def renew(self, visit: Visit) -> Response:
        where, known, request = await self.scopes.node(visit, "regenerateToken")
        node, _ = await self.reading.get(known, where.node)
        if (
            visit.form.get("etag") != node.etag
        ):  # sent twice, or somebody else was faster: that one must not die unseen
            return self._form(visit, known, node, 409)
        seeing = await self.scopes.doors.may_see_secrets(visit.caller, where)
        written = await self.writing.regenerate(known, node.name, replace(request, may_see_secrets=seeing))
        await self.granting.try_to_let_in(known, written.node, request)
        answer = visits.go(Shown(known.id, 0, "").node(node.name) + "/joining")
        if written.url:
            self.handing.give(answer, visit, known.id.node(node.name), written.url)
        return answer

    def _form(self, visit: Visit, known: Known, node: Node, status: int = 200) -> Response:
        return self.pages.show(
            "token",
            visit,
            status=status,
            node=node,
            cluster=known.id,
            here_is=Shown(known.id, 0, "").node(node.name),
            joined=node.join.get("state") == "Joined",
            expires=float(node.join.get("urlExpires", 0.0)),
            hours=round(self.scopes.doors.shop.token_seconds / 3600),
            raced=status == 409,
        )
