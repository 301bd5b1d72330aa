"""The audit: who did what, when, and how it ended; searched, paged, and taken away as a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.responses import StreamingResponse

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.times import iso
from aks_flex_node.rp.dashboard import auditing, exports, timelines
from aks_flex_node.rp.dashboard.auditing import Place, asked, place
from aks_flex_node.rp.serving.doors import action_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.auditing import Asked
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes, Shown
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.store.store import Event

    File = Callable[[AsyncIterator[list[Event]]], AsyncIterator[bytes]]

SIZE = 50
MOST_LOOKED = 5_000  # events that one page looks through
MOST_EXPORTED = 50_000
FILTERS = ("who", "what", "outcome", "since", "until", "node", "cluster", "resource")
# In the order of a node's life, then of a cluster's, then of people.
KINDS = {
    **timelines.WORDS,
    "update": "Changed",
    "read": "Read",
    "list": "Listed",
    "write": "Written",
    "reportStatus": "Status reported",
    "cluster.added": "Cluster added",
    "cluster.renewed": "Cluster added again",
    "cluster.changed": "Cluster has changed",
    "cluster.removed": "Cluster removed",
    "signIn": "Signed in",
}
DENIED = {**timelines.DENIED, "list": "Listing nodes was refused", "signIn": "Signing in was refused"}


@dataclass(frozen=True)
class Row:
    """An event as the page shows it."""

    event: Event
    words: str
    name: str  # of what it was done to
    link: str  # to its page; empty where there is none

    @property
    def denied(self) -> bool:
        return self.event.outcome != "ok"

    @property
    def detail(self) -> str:
        return json.dumps(self.event.detail, indent=2, ensure_ascii=False) if self.event.detail else ""


@dataclass(frozen=True)
class Audits:
    pages: Pages
    scopes: Scopes

    async def show(self, visit: Visit) -> Response:
        if not _everything(visit) and not await self.scopes.clusters(visit.caller, "audit"):
            return self.pages.show("audit_nowhere", visit)
        clusters, where, wanted = await self._let_in(visit)
        found = await auditing.part(self.scopes.doors.shop.store, wanted, SIZE, MOST_LOOKED)
        kept = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
        return self.pages.show(
            "audit",
            visit,
            clusters=clusters,
            everything=_everything(visit),
            where=where,
            query={name: visit.query.get(name, "") for name in FILTERS},
            filtered=bool(set(kept) - {"cluster"}),
            rows=[row(event, clusters) for event in found.events],
            older=_link("/ui/audit", {**kept, "before": found.next}) if found.next else "",
            newest=_link("/ui/audit", kept) if wanted.before else "",
            cut=found.cut,
            csv=_link("/ui/audit.csv", kept),
            json=_link("/ui/audit.json", kept),
            kinds=KINDS,
            most_exported=MOST_EXPORTED,
            most_looked=MOST_LOOKED,
        )

    async def export_csv(self, visit: Visit) -> Response:
        return await self._export(visit, exports.as_csv, "csv", "text/csv; charset=utf-8")

    async def export_json(self, visit: Visit) -> Response:
        return await self._export(visit, exports.as_json, "json", "application/json; charset=utf-8")

    async def _export(self, visit: Visit, file: File, suffix: str, kind: str) -> Response:
        """Written as it is read: no more than a batch of it is ever in memory."""
        _, _, wanted = await self._let_in(visit)
        now = iso(self.scopes.doors.shop.now()).replace(":", "")
        headers = {**self.pages.headers, "Content-Disposition": f'attachment; filename="audit-{now}.{suffix}"'}
        return StreamingResponse(file(self._fitting(wanted)), 200, headers, media_type=kind)

    async def _fitting(self, wanted: Asked) -> AsyncIterator[list[Event]]:
        async for batch in auditing.look(self.scopes.doors.shop.store, wanted, MOST_EXPORTED):
            yield [each for each in batch if wanted.fits(each)]

    async def _let_in(self, visit: Visit) -> tuple[Sequence[Shown], Place, Asked]:
        """As in the API: the admin key sees everything, others one cluster at a time, where they may."""
        doors = self.scopes.doors
        if wait := doors.over_limit(visit.caller, None, "read"):
            raise errors.too_many(wait)
        clusters = await self.scopes.clusters(visit.caller, "audit")
        where = place(visit.query)
        if where.cluster is None and not _everything(visit):
            if where.other or not clusters:
                raise errors.forbidden(visit.caller, action_name("audit"), where.other or "/")
            where = Place(clusters[0].id, where.node)
        if where.cluster:
            known = await doors.shop.clusters.find(where.cluster.key) is not None
            if not await doors.roles.allows(visit.caller, "audit", where.cluster, ask=known):
                raise errors.forbidden(visit.caller, action_name("audit"), where.resource)
        return clusters, where, asked(visit.query, where)


def row(event: Event, clusters: Sequence[Shown]) -> Row:
    denied = DENIED.get(event.what) if event.outcome == "denied" else None
    words = denied or KINDS.get(event.what, event.what)
    where = place({"resource": event.resource})
    shown = next((each for each in clusters if where.cluster and each.id.key == where.cluster.key), None)
    if where.node:
        link = shown.node(where.node) if shown and event.what != "delete" else ""
        return Row(event, words, where.node, link)
    name = shown.label if shown else where.cluster.name if where.cluster else "the service"
    return Row(event, words, name, "")


def _everything(visit: Visit) -> bool:
    return visit.caller.kind == "Key"


def _link(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
