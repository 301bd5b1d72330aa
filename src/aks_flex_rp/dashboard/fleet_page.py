"""Fleet page: counts of nodes by state, cached for a few seconds, and a list to search, filter, sort and page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import urlencode

from aks_flex_rp.arm import errors
from aks_flex_rp.bounded_memory import BoundedCache
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.page_request import digits
from aks_flex_rp.store.fleet import FleetQuery, FleetSort, FleetState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import ShownCluster
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.fleet import FleetCount


PAGE = 50
MAX_SEARCH_LENGTH = 200
STATE_LABELS: dict[FleetState, str] = {
    FleetState.READY: "Ready",
    FleetState.NOT_READY: "Not ready",
    FleetState.NOT_REPORTING: "Not reporting",
    FleetState.UNKNOWN: "Unknown",
    FleetState.FAILED: "Join failed",
    FleetState.JOINING: "Joining",
    FleetState.CREATED: "Created",
    FleetState.LEFT: "Left",
}
MAX_VERSIONS = 6


@dataclass(frozen=True)
class BarSegment:
    """One segment of a bar chart."""

    name: str
    label: str
    nodes: int
    start: float  # percent of the bar
    width: float


@dataclass(frozen=True)
class FleetPage(DashboardPage):
    """Serves the fleet page."""

    counter: FleetCounter

    async def show(self, visit: PageRequest) -> Response:
        if wait := self.scopes.authorizer.retry_after(visit.caller, None, "read"):
            raise errors.too_many_requests(wait)
        clusters = await self.scopes.clusters(visit.caller)
        query = parse_fleet_query(visit.query, clusters)
        now = self.context.now()
        counts = [each for each in await self.counter.counts() if each.cluster_number in query.cluster_numbers]
        entries = await self.store.fleet(query, now) if query.cluster_numbers else ()
        total = query.offset + len(entries)
        if len(entries) == PAGE or (query.offset and not entries):  # otherwise this is the last page
            total = await self.counter.length(replace(query, sort="name", descending=False, offset=0, limit=1))
        page = query.offset // PAGE + 1
        return self.pages.show(
            "fleet",
            visit,
            clusters=clusters,
            clusters_by_number={each.cluster_number: each for each in clusters},
            query=query,
            entries=entries,
            with_pools=any(each.pool for each in entries),
            total=total,
            page=page,
            last_page=max(1, -(-total // PAGE)),
            states=segments((state, STATE_LABELS[state], _sum(counts, state=state)) for state in FleetState),
            versions=_versions(counts),
            everything=_sum(counts),
            behind=_sum(counts, behind=True),
            trouble=_sum(counts, trouble=True),
            labels=STATE_LABELS,
            link=FleetLinks("/", visit.query, "page"),
        )


@dataclass(frozen=True)
class QueryLinks:
    """Builds links to the same page with other filters, from its first page on."""

    path: str
    query: Mapping[str, str]
    page: str  # the parameter that says which page of a list is shown
    anchor: str = ""

    def __call__(self, **changes: Any) -> str:
        unchanged = {name: value for name, value in self.query.items() if name != self.page}
        parameters = {name: str(value) for name, value in {**unchanged, **changes}.items() if value}
        return f"{self.path}{'?' if parameters else ''}{urlencode(parameters)}{self.anchor}"


class FleetLinks(QueryLinks):
    """Builds links to the same list with other filters, sort order or page."""

    def sort(self, name: str) -> str:
        descending = self.query.get("sort", "name") == name and self.query.get("order") != "desc"
        return self(sort=name, order="desc" if descending else "")


def parse_fleet_query(query: Mapping[str, str], clusters: Sequence[ShownCluster]) -> FleetQuery:
    """Reads the filters from the query string. Ignores invalid values, so that old links still work."""
    chosen = query.get("cluster", "").lower()
    cluster_numbers = tuple(
        each.cluster_number for each in clusters if each.cluster_number and chosen in {"", each.id.key}
    )
    state, sort = query.get("state", ""), query.get("sort", "name")
    return FleetQuery(
        cluster_numbers,
        search=query.get("search", "")[:MAX_SEARCH_LENGTH],
        state=FleetState(state) if state in tuple(FleetState) else None,
        version=query.get("version", "")[:64],
        pool=query.get("pool", "")[:12].lower(),
        trouble=query.get("trouble") == "yes",
        behind=query.get("behind") == "yes",
        sort=cast("FleetSort", sort) if sort in get_args(FleetSort) else "name",
        descending=query.get("order") == "desc",
        offset=(max(digits(query.get("page", ""), 6), 1) - 1) * PAGE,
        limit=PAGE,
    )


def segments(parts: Iterable[tuple[str, str, int]]) -> list[BarSegment]:
    """Returns the segments that are not empty, each wide enough to be visible."""
    present = [part for part in parts if part[2]]
    total = sum(nodes for _, _, nodes in present)
    widths = [max(nodes / total * 100, 1.0) for _, _, nodes in present]
    scale = 100 / sum(widths) if widths else 1.0
    found, start = [], 0.0
    for (name, label, nodes), width in zip(present, widths, strict=True):
        found.append(BarSegment(name, label, nodes, round(start, 3), round(width * scale, 3)))
        start += width * scale
    return found


def _versions(counts: Sequence[FleetCount]) -> list[BarSegment]:
    """Returns the most frequent versions, newest first, and the others as one segment."""
    nodes: Counter[str] = Counter()
    for each in counts:
        nodes[each.kubelet] += each.nodes
    unknown = nodes.pop("", 0)
    common = newest_first(version for version, _ in nodes.most_common(MAX_VERSIONS))
    parts = [(version, f"v{version}", nodes[version]) for version in common]
    rest = sum(nodes.values()) - sum(number for _, _, number in parts)
    return segments([*parts, ("others", "other", rest), ("none", "not reported", unknown)])


def newest_first(found: Iterable[str]) -> list[str]:
    """Sorts versions. A node can report any text: parts that are not numbers count as 0."""

    def order(version: str) -> list[int]:
        return [int(part) if part.isascii() and part.isdigit() else 0 for part in version.split(".")]

    return sorted(found, key=order, reverse=True)


def _sum(counts: Iterable[FleetCount], **attributes: Any) -> int:
    return sum(each.nodes for each in counts if all(getattr(each, key) == value for key, value in attributes.items()))


FRESH_SECONDS = 2.0
SHARE = 20  # a count is cached for 20 times its duration, so that counting uses at most a twentieth of a CPU
LONGEST_FRESH = 30.0  # seconds: one slow query must not make the counts stale for long
STALE_FACTOR = 5  # counts older than this many times the cache time are not shown
MAX_CACHED_LENGTHS = 256  # queries whose length is cached


class FleetCounter:
    """Caches the counts of the fleet and the lengths of lists. Use it from one event loop only."""

    def __init__(
        self, store: Store, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._counts: tuple[float, tuple[FleetCount, ...]] = (float("-inf"), ())
        self._fresh = FRESH_SECONDS
        self._counting: asyncio.Task[None] | None = None
        self._lengths: BoundedCache[FleetQuery, tuple[float, int]] = BoundedCache(MAX_CACHED_LENGTHS)

    async def counts(self) -> tuple[FleetCount, ...]:
        """Returns the counts. Slightly stale ones are returned while new ones are counted in the background."""
        age = self._clock() - self._counts[0]
        if age > self._fresh and self._counting is None:
            self._counting = asyncio.create_task(self._count())
        if age > self._fresh * STALE_FACTOR and self._counting:
            await asyncio.shield(self._counting)
        return self._counts[1]

    async def _count(self) -> None:
        try:
            began = self._clock()
            self._counts = (began, await self._store.fleet_counts(self._now()))
            self._fresh = min(max(FRESH_SECONDS, SHARE * (self._clock() - began)), LONGEST_FRESH)
        finally:
            self._counting = None

    async def length(self, query: FleetQuery) -> int:
        """Returns the number of nodes that match the query, from a short-lived cache."""
        known = self._lengths.get(query)
        began = self._clock()
        if known and began - known[0] < FRESH_SECONDS:
            return known[1]
        found = await self._store.count_fleet(query, self._now())
        self._lengths[query] = (began, found)
        return found
