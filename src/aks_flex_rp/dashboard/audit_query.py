"""Audit queries: filters from the query string, and a bounded search, newest first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.dashboard.page_request import digits
from aks_flex_rp.store.model import AuditOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import AuditEvent

BATCH = 500
CLOCK_SKEW = 3600.0  # seconds; with that margin, no event before an old one is newer
OUTCOMES = tuple(AuditOutcome)
MAX_TEXT_LENGTH = 512
_NODE = re.compile(r"(?i)(?P<cluster>/.*)/flexnodeconfig(?:/(?P<node>[^/]*))?")
_POOL = re.compile(r"(?i)(?P<cluster>/[^?]*?)/flexnodepools/(?P<path>.+)")


@dataclass(frozen=True)
class AuditQuery:
    """Filters of an audit search."""

    resource: str = ""  # an ID and everything below it; empty for all resources
    who: str = ""
    what: str = ""
    outcome: AuditOutcome | None = None
    node: str = ""  # of any cluster; used when no cluster is selected
    since: float = 0.0
    until: float = 0.0
    before: int = 0

    def fits(self, event: AuditEvent) -> bool:
        """Applies the filters that the store does not apply."""
        return (
            self.outcome in {None, event.outcome}
            and event.at >= self.since
            and (not self.until or event.at < self.until)
            and (not self.node or event.resource.lower().endswith(f"/flexnodeconfig/{self.node.lower()}"))
        )


@dataclass(frozen=True)
class AuditScope:
    """The cluster, node or pool whose events are searched."""

    cluster: ClusterId | None = None
    node: str = ""
    other: str = ""  # an ID that is neither a cluster nor something below one
    pool: str = ""  # the path below the pools of the cluster, for example `edge/rollouts/r1`

    @property
    def resource(self) -> str:
        if self.cluster is None:
            return self.other
        if self.pool:
            return self.cluster.pool(self.pool)
        return self.cluster.node(self.node) if self.node else str(self.cluster)


def parse_scope(query: Mapping[str, str]) -> AuditScope:
    """Reads the scope from a resource ID (links) or from the fields of the form."""
    text = query.get("resource", "")[:MAX_TEXT_LENGTH]
    resource = text.rstrip("/") or text[:1]
    found = _NODE.fullmatch(resource)
    above = parse_cluster_id(found["cluster"]) if found else None
    if found and above:
        return AuditScope(above, found["node"] or "")
    pools = _POOL.fullmatch(resource)
    if pools and (above := parse_cluster_id(pools["cluster"])):
        return AuditScope(above, pool=pools["path"])
    if resource and (whole := parse_cluster_id(resource)):
        return AuditScope(whole)
    if resource:
        return AuditScope(other=resource)
    return AuditScope(parse_cluster_id(query.get("cluster", "")), query.get("node", "").strip()[:253])


def parse_query(query: Mapping[str, str], where: AuditScope) -> AuditQuery:
    """Reads the filters from the query string. Ignores invalid values, so that old links still work."""
    last_day = day(query.get("until", ""))
    return AuditQuery(
        where.resource,
        who=query.get("who", "").strip()[:MAX_TEXT_LENGTH],
        what=query.get("what", "").strip()[:64],
        outcome=AuditOutcome(query["outcome"]) if query.get("outcome") in OUTCOMES else None,
        node="" if where.cluster else where.node,
        since=day(query.get("since", "")),
        until=last_day + timedelta(days=1).total_seconds() if last_day else 0.0,
        before=digits(query.get("before", ""), 15),
    )


def day(text: str) -> float:
    """Returns the start of a day (YYYY-MM-DD, UTC) as a timestamp; 0 for other text."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


async def search_batches(store: Store, query: AuditQuery, most: int) -> AsyncIterator[list[AuditEvent]]:
    """Yields unfiltered batches, newest first, until `most` events were searched or none are left."""
    before, searched = query.before, 0
    while searched < most:
        limit = min(BATCH, most - searched)
        found = await store.audit(
            resource=query.resource, caller=query.who, what=query.what, before=before, limit=limit
        )
        if found:
            yield list(found)
        if len(found) < limit or found[-1].at < query.since - CLOCK_SKEW:
            return
        searched, before = searched + len(found), found[-1].sequence


@dataclass(frozen=True)
class AuditSlice:
    """The events of one page."""

    events: tuple[AuditEvent, ...]
    next: int  # the sequence number that the next page starts before; 0 on the last page
    cut: bool = False  # the search limit was reached before the page was full


async def audit_slice(store: Store, query: AuditQuery, size: int, most: int) -> AuditSlice:
    """Returns up to `size` matching events, after searching at most `most` events."""
    found: list[AuditEvent] = []
    searched, last = 0, 0
    async for batch in search_batches(store, query, most):
        found += [each for each in batch if query.fits(each)]
        searched, last = searched + len(batch), batch[-1].sequence
        if len(found) > size:
            return AuditSlice(tuple(found[:size]), found[size - 1].sequence)
    return AuditSlice(tuple(found), last if searched >= most else 0, cut=searched >= most)
