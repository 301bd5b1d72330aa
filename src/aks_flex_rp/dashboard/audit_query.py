"""Audit queries: filters from the query string, and a bounded search, newest first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.store.model import AuditOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.protocol import Store

BATCH = 500
CLOCKS = 3600.0  # seconds by which replicas may disagree: what is that much too old has nothing newer behind it
OUTCOMES = tuple(AuditOutcome)
MAX_TEXT_LENGTH = 512
_NODE = re.compile(r"(?i)(?P<cluster>/.*)/flexnodeconfig(?:/(?P<node>[^/]*))?")


@dataclass(frozen=True)
class AuditQuery:
    resource: str = ""  # an id, and all below it; empty for everything
    who: str = ""
    what: str = ""
    outcome: AuditOutcome | None = None
    node: str = ""  # of any cluster, where none is chosen
    since: float = 0.0
    until: float = 0.0
    before: int = 0

    def fits(self, event: AuditEvent) -> bool:
        """What the store does not look for itself."""
        return (
            self.outcome in {None, event.outcome}
            and event.at >= self.since
            and (not self.until or event.at < self.until)
            and (not self.node or event.resource.lower().endswith(f"/flexnodeconfig/{self.node.lower()}"))
        )


@dataclass(frozen=True)
class AuditScope:
    """Where the events are to be from."""

    cluster: ClusterId | None = None
    node: str = ""
    other: str = ""  # what is no cluster and no node

    @property
    def resource(self) -> str:
        if self.cluster is None:
            return self.other
        return self.cluster.node(self.node) if self.node else str(self.cluster)


def parse_scope(query: Mapping[str, str]) -> AuditScope:
    """From an id, as links have it, or from the fields of the form."""
    text = query.get("resource", "")[:MAX_TEXT_LENGTH]
    resource = text.rstrip("/") or text[:1]
    found = _NODE.fullmatch(resource)
    above = parse_cluster_id(found["cluster"]) if found else None
    if found and above:
        return AuditScope(above, found["node"] or "")
    if resource and (whole := parse_cluster_id(resource)):
        return AuditScope(whole)
    if resource:
        return AuditScope(other=resource)
    return AuditScope(parse_cluster_id(query.get("cluster", "")), query.get("node", "").strip()[:253])


def parse_query(query: Mapping[str, str], where: AuditScope) -> AuditQuery:
    """What cannot be meant is left out: an old link still leads somewhere."""
    before = query.get("before", "")
    last_day = day(query.get("until", ""))
    return AuditQuery(
        where.resource,
        who=query.get("who", "").strip()[:MAX_TEXT_LENGTH],
        what=query.get("what", "").strip()[:64],
        outcome=AuditOutcome(query["outcome"]) if query.get("outcome") in OUTCOMES else None,
        node="" if where.cluster else where.node,
        since=day(query.get("since", "")),
        until=last_day + timedelta(days=1).total_seconds() if last_day else 0.0,
        before=int(before) if before.isascii() and before.isdigit() and len(before) < 16 else 0,
    )


def day(text: str) -> float:
    """When a day begins, as browsers write days; 0 for what is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


async def search_batches(store: Store, query: AuditQuery, most: int) -> AsyncIterator[list[AuditEvent]]:
    """Batch by batch, what fits and what does not, until `most` were looked at or there are no more."""
    before, looked = query.before, 0
    while looked < most:
        limit = min(BATCH, most - looked)
        found = await store.audit(
            resource=query.resource, caller=query.who, what=query.what, before=before, limit=limit
        )
        if found:
            yield list(found)
        if len(found) < limit or found[-1].at < query.since - CLOCKS:
            return
        looked, before = looked + len(found), found[-1].sequence


@dataclass(frozen=True)
class AuditSlice:
    """Of the audit, what one page shows."""

    events: tuple[AuditEvent, ...]
    next: int  # before which event the next page begins; 0 for none
    cut: bool = False  # looking was ended before the page was full


async def audit_slice(store: Store, query: AuditQuery, size: int, most: int) -> AuditSlice:
    found: list[AuditEvent] = []
    looked, last = 0, 0
    async for batch in search_batches(store, query, most):
        found += [each for each in batch if query.fits(each)]
        looked, last = looked + len(batch), batch[-1].sequence
        if len(found) > size:
            return AuditSlice(tuple(found[:size]), found[size - 1].sequence)
    return AuditSlice(tuple(found), last if looked >= most else 0, cut=looked >= most)
