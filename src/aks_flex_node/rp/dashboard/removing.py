"""Deleting a node, after saying what that does, and after the person has typed its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.dashboard import explaining, visits
from aks_flex_node.rp.dashboard.nodes import leaves, system
from aks_flex_node.rp.dashboard.scopes import Shown
from aks_flex_node.rp.nodes.writing import Guard

if TYPE_CHECKING:
    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.around import Known
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.nodes.writing import Writing
    from aks_flex_node.rp.store.store import Node


@dataclass(frozen=True)
class Removing:
    pages: Pages
    scopes: Scopes
    reading: Reading
    writing: Writing

    async def ask(self, visit: Visit) -> Response:
        where, known, _ = await self.scopes.node(visit, "delete")
        node, shown = await self.reading.get(known, where.node)
        return self._form(visit, known, node, explaining.state_of(shown["properties"]["status"]))

    async def remove(self, visit: Visit) -> Response:
        where, known, request = await self.scopes.node(visit, "delete")
        node, shown = await self.reading.get(known, where.node)
        state = explaining.state_of(shown["properties"]["status"])
        if visit.form.get("name", "").strip().lower() != node.key:
            return self._form(visit, known, node, state, 400, wrong=True)
        try:
            await self.writing.delete(known, node.name, Guard(match=visit.form.get("etag") or '""'), request)
        except ArmError as error:
            if error.status != 412:
                raise
            node, _ = await self.reading.get(known, where.node)
            return self._form(visit, known, node, state, 409, raced=True)
        return visits.go(Shown(known.id, 0, "").node(node.name))

    def _form(
        self,
        visit: Visit,
        known: Known,
        node: Node,
        state: str,
        status: int = 200,
        *,
        wrong: bool = False,
        raced: bool = False,
    ) -> Response:
        return self.pages.show(
            "delete",
            visit,
            status=status,
            node=node,
            cluster=known.id,
            here_is=Shown(known.id, 0, "").node(node.name),
            leaves=leaves(node.properties),
            monitored=bool(node.properties.get("continuousMonitoring")),
            joined=node.join.get("state") == "Joined",
            silent=state == "Silent",
            typed=visit.form.get("name", "") if wrong else "",
            wrong=wrong,
            raced=raced,
            system=system(node.system),
        )
