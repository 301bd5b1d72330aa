"""Audit page: filters and pages through the audit log, and exports it as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.responses import StreamingResponse

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.api.authorization import azure_action
from aks_flex_rp.api.routes import event_document
from aks_flex_rp.arm import errors
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.dashboard import audit_query, node_history
from aks_flex_rp.dashboard.audit_query import AuditScope, parse_query, parse_scope
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.store.model import AuditAction, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.audit_query import AuditQuery
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import ShownCluster
    from aks_flex_rp.store.model import AuditEvent

    File = Callable[[AsyncIterator[list[AuditEvent]]], AsyncIterator[bytes]]


COLUMNS = ("sequence", "at", "who", "whoId", "what", "resource", "outcome", "source", "request", "detail")
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


async def as_csv(batches: AsyncIterator[list[AuditEvent]]) -> AsyncIterator[bytes]:
    """Yields the events as CSV, batch by batch."""
    yield _lines([COLUMNS])
    async for batch in batches:
        yield _lines(map(_row, batch))


async def as_json(batches: AsyncIterator[list[AuditEvent]]) -> AsyncIterator[bytes]:
    """Yields the events as one JSON document, event by event."""
    separator = b'{"value":[\n'
    async for batch in batches:
        for event in batch:
            yield separator + json.dumps(event_document(event), ensure_ascii=False).encode()
            separator = b",\n"
    yield b"\n]}\n" if separator == b",\n" else b'{"value":[]}\n'


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _row(event: AuditEvent) -> list[object]:
    document = event_document(event)
    document["detail"] = json.dumps(document["detail"], ensure_ascii=False) if document["detail"] else ""
    return [escape_formula(document[name]) for name in COLUMNS]


def escape_formula(value: object) -> object:
    """Prefixes text that a spreadsheet would evaluate as a formula: names in events are untrusted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


SIZE = 50
MAX_SEARCHED = 5_000  # events that one page searches
MAX_EXPORTED = 50_000
FILTERS = ("who", "what", "outcome", "since", "until", "node", "cluster", "resource")
# In the order of a node's life cycle, then roll-outs, then a cluster's, then sign-ins.
KINDS = {
    **node_history.EVENT_LABELS,
    AuditAction.UPDATE: "Changed",
    AuditAction.READ: "Read",
    AuditAction.LIST: "Listed",
    AuditAction.WRITE: "Written",
    AuditAction.REPORT_STATUS: "Status reported",
    AuditAction.ROLLOUT_CREATED: "Roll-out started",
    AuditAction.ROLLOUT_STATE: "Roll-out changed its state",
    AuditAction.ROLLOUT_PAUSED: "Roll-out paused",
    AuditAction.ROLLOUT_RESUMED: "Roll-out resumed",
    AuditAction.ROLLOUT_APPROVED: "Roll-out approved",
    AuditAction.ROLLOUT_REVERSED: "Roll-out reversed",
    AuditAction.ROLLOUT_ABORTED: "Roll-out aborted",
    AuditAction.ROLLOUT_DELETED: "Roll-out deleted",
    AuditAction.ROLLOUT_OVERRIDDEN: "Node taken out of its roll-out",
    AuditAction.REVISION_BARRED: "Revision barred",
    AuditAction.REVISION_ALLOWED: "Revision allowed",
    AuditAction.CLUSTER_ADDED: "Cluster added",
    AuditAction.CLUSTER_RENEWED: "Cluster added again",
    AuditAction.CLUSTER_CHANGED: "Cluster changed",
    AuditAction.CLUSTER_REMOVED: "Cluster removed",
    AuditAction.SIGN_IN: "Signed in",
}
DENIED = {
    **node_history.DENIED,
    AuditAction.LIST: "List denied",
    AuditAction.SIGN_IN: "Sign-in denied",
}


@dataclass(frozen=True)
class AuditRow:
    """One row of the audit page."""

    event: AuditEvent
    text: str
    name: str  # of the resource
    link: str  # to the resource's page; empty when it has none

    @property
    def denied(self) -> bool:
        return self.event.outcome is not AuditOutcome.OK


class AuditPage(DashboardPage):
    """Serves the audit page and its exports."""

    async def show(self, visit: PageRequest) -> Response:
        if not _everything(visit) and not await self.scopes.clusters(visit.caller, Operation.AUDIT):
            return self.pages.show("audit_nowhere", visit)
        clusters, where, selection = await self._authorize(visit)
        found = await audit_query.audit_slice(self.store, selection, SIZE, MAX_SEARCHED)
        filters = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
        return self.pages.show(
            "audit",
            visit,
            clusters=clusters,
            everything=_everything(visit),
            where=where,
            query={name: visit.query.get(name, "") for name in FILTERS},
            filtered=bool(set(filters) - {"cluster"}),
            rows=[audit_row(event, clusters) for event in found.events],
            older=_link("/ui/audit", {**filters, "before": found.next}) if found.next else "",
            newest=_link("/ui/audit", filters) if selection.before else "",
            cut=found.cut,
            csv=_link("/ui/audit.csv", filters),
            json=_link("/ui/audit.json", filters),
            kinds=KINDS,
            max_exported=MAX_EXPORTED,
            max_searched=MAX_SEARCHED,
        )

    async def export_csv(self, visit: PageRequest) -> Response:
        return await self._export(visit, as_csv, "csv", "text/csv; charset=utf-8")

    async def export_json(self, visit: PageRequest) -> Response:
        return await self._export(visit, as_json, "json", "application/json; charset=utf-8")

    async def _export(self, visit: PageRequest, file: File, suffix: str, kind: str) -> Response:
        """Streams the export, so that at most one batch is in memory."""
        _, _, selection = await self._authorize(visit)
        now = format_utc(self.context.now()).replace(":", "")
        headers = {**self.pages.headers, "Content-Disposition": f'attachment; filename="audit-{now}.{suffix}"'}
        return StreamingResponse(file(self._fitting(selection)), 200, headers, media_type=kind)

    async def _fitting(self, query: AuditQuery) -> AsyncIterator[list[AuditEvent]]:
        async for batch in audit_query.search_batches(self.store, query, MAX_EXPORTED):
            yield [each for each in batch if query.fits(each)]

    async def _authorize(self, visit: PageRequest) -> tuple[Sequence[ShownCluster], AuditScope, AuditQuery]:
        """Authorizes the query as the API does: the admin key reads everything, others one permitted cluster."""
        authorizer = self.scopes.authorizer
        if wait := authorizer.retry_after(visit.caller, None, "read"):
            raise errors.too_many_requests(wait)
        clusters = await self.scopes.clusters(visit.caller, Operation.AUDIT)
        where = parse_scope(visit.query)
        if where.cluster is None and not _everything(visit):
            if where.other or not clusters:
                raise errors.forbidden(visit.caller, azure_action(Operation.AUDIT), where.other or "/")
            where = AuditScope(clusters[0].id, where.node)
        if where.cluster:
            known = await authorizer.context.clusters.find(where.cluster.key) is not None
            if not await authorizer.roles.allows(visit.caller, Operation.AUDIT, where.cluster, ask=known):
                raise errors.forbidden(visit.caller, azure_action(Operation.AUDIT), where.resource)
        return clusters, where, parse_query(visit.query, where)


def audit_row(event: AuditEvent, clusters: Sequence[ShownCluster]) -> AuditRow:
    """Returns the row of an event, linked to its node or pool when the caller can see the cluster."""
    denied = DENIED.get(event.what) if event.outcome is AuditOutcome.DENIED else None
    text = denied or KINDS.get(event.what, event.what)
    where = parse_scope({"resource": event.resource})
    shown = next((each for each in clusters if where.cluster and each.id.key == where.cluster.key), None)
    if where.node:
        link = shown.node(where.node) if shown and event.what is not AuditAction.DELETE else ""
        return AuditRow(event, text, where.node, link)
    if where.pool:
        return AuditRow(event, text, where.pool, shown.pool(_page_of_pool(where.pool)) if shown else "")
    name = shown.label if shown else where.cluster.name if where.cluster else "the service"
    return AuditRow(event, text, name, "")


def _page_of_pool(path: str) -> str:
    """Returns the path of the page of a roll-out, or of the pool of anything else."""
    pool, _, below = path.partition("/")
    return path if re.fullmatch(r"rollouts/[a-z0-9-]+", below) else pool


def _everything(visit: PageRequest) -> bool:
    return visit.caller.kind is CallerKind.KEY


def _link(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
