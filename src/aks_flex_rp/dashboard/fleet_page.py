"""Fleet page: counts of nodes by state, cached for a few seconds, and a list to search, filter, sort and page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import urlencode

from aks_flex_rp.arm import errors
from aks_flex_rp.store.fleet import FleetQuery, FleetSort, FleetState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.scopes import DashboardScopes, ShownCluster
    from aks_flex_rp.store.fleet import FleetCount
    from aks_flex_rp.store.protocol import Store


PAGE = 50
LONGEST_SEARCH = 200
STATE_LABELS: dict[FleetState, str] = {
    FleetState.READY: "Ready",
    FleetState.NOT_READY: "Not ready",
    FleetState.NOT_REPORTING: "Not reporting",
    FleetState.UNKNOWN: "Unknown",
    FleetState.FAILED: "Join failed",
    FleetState.JOINING: "Joining",
}
MOST_VERSIONS = 6


@dataclass(frozen=True)
class BarSegment:
    """A part of a bar, and what it stands for."""

    name: str
    word: str
    nodes: int
    start: float  # in a bar of 100
    width: float


@dataclass(frozen=True)
class FleetPage:
    pages: PageRenderer
    scopes: DashboardScopes
    counting: FleetCounter

    async def show(self, page_request: PageRequest) -> Response:
        if wait := self.scopes.authorizer.retry_after(page_request.caller, None, "read"):
            raise errors.too_many_requests(wait)
        clusters = await self.scopes.clusters(page_request.caller)
        query = parse_fleet_query(page_request.query, clusters)
        now = self.scopes.authorizer.context.now()
        counts = _of(await self.counting.counts(), query.cluster_numbers)
        entries = await self.scopes.authorizer.context.store.fleet(query, now) if query.cluster_numbers else ()
        total = query.offset + len(entries)
        if len(entries) == PAGE or (query.offset and not entries):  # else these are the last ones
            total = await self.counting.length(replace(query, sort="name", descending=False, offset=0, limit=1))
        page = query.offset // PAGE + 1
        return self.pages.show(
            "fleet",
            page_request,
            clusters=clusters,
            clusters_by_number={each.cluster_number: each for each in clusters},
            query=query,
            entries=entries,
            total=total,
            page=page,
            last_page=max(1, -(-total // PAGE)),
            states=segments((state, STATE_LABELS[state], _sum(counts, state=state)) for state in FleetState),
            versions=_versions(counts),
            everything=_sum(counts),
            behind=_sum(counts, behind=True),
            trouble=_sum(counts, trouble=True),
            labels=STATE_LABELS,
            link=FleetLinks(page_request.query),
        )


@dataclass(frozen=True)
class FleetLinks:
    """The same list with something else about it."""

    query: Mapping[str, str]

    def __call__(self, **changes: Any) -> str:
        unchanged = {name: value for name, value in self.query.items() if name != "page"}
        parameters = {name: str(value) for name, value in {**unchanged, **changes}.items() if value}
        return f"/?{urlencode(parameters)}" if parameters else "/"

    def sort(self, name: str) -> str:
        turned = self.query.get("sort", "name") == name and self.query.get("order") != "desc"
        return self(sort=name, order="desc" if turned else "")


def parse_fleet_query(query: Mapping[str, str], clusters: Sequence[ShownCluster]) -> FleetQuery:
    """What an address asks for. What it cannot mean is left out: an old link still leads somewhere."""
    chosen = query.get("cluster", "").lower()
    cluster_numbers = tuple(
        each.cluster_number for each in clusters if each.cluster_number and chosen in {"", each.id.key}
    )
    page = query.get("page", "1")
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1
    state, sort = query.get("state", ""), query.get("sort", "name")
    return FleetQuery(
        cluster_numbers,
        search=query.get("search", "")[:LONGEST_SEARCH],
        state=FleetState(state) if state in tuple(FleetState) else None,
        version=query.get("version", "")[:64],
        trouble=query.get("trouble") == "yes",
        behind=query.get("behind") == "yes",
        sort=cast("FleetSort", sort) if sort in get_args(FleetSort) else "name",
        descending=query.get("order") == "desc",
        offset=(max(number, 1) - 1) * PAGE,
        limit=PAGE,
    )


def segments(parts: Iterable[tuple[str, str, int]]) -> list[BarSegment]:
    """Those that there are, side by side; none so thin that nobody sees it."""
    there = [part for part in parts if part[2]]
    total = sum(nodes for _, _, nodes in there)
    widths = [max(nodes / total * 100, 1.0) for _, _, nodes in there]
    scale = 100 / sum(widths) if widths else 1.0
    found, start = [], 0.0
    for (name, word, nodes), width in zip(there, widths, strict=True):
        found.append(BarSegment(name, word, nodes, round(start, 3), round(width * scale, 3)))
        start += width * scale
    return found


def _versions(counts: Sequence[FleetCount]) -> list[BarSegment]:
    """The most frequent ones, the newest first; the rest together."""
    nodes: Counter[str] = Counter()
    for each in counts:
        nodes[each.kubelet] += each.nodes
    unknown = nodes.pop("", 0)
    common = newest_first(version for version, _ in nodes.most_common(MOST_VERSIONS))
    parts = [(version, f"v{version}", nodes[version]) for version in common]
    rest = sum(nodes.values()) - sum(number for _, _, number in parts)
    return segments([*parts, ("others", "others", rest), ("none", "none yet", unknown)])


def newest_first(found: Iterable[str]) -> list[str]:
    """A node may say anything: what is no number counts as none, and keeps nobody from the page."""

    def order(version: str) -> list[int]:
        return [int(part) if part.isascii() and part.isdigit() else 0 for part in version.split(".")]

    return sorted(found, key=order, reverse=True)


def _of(counts: Iterable[FleetCount], cluster_numbers: Sequence[int]) -> list[FleetCount]:
    return [each for each in counts if each.cluster_number in cluster_numbers]


def _sum(counts: Iterable[FleetCount], **attributes: Any) -> int:
    return sum(each.nodes for each in counts if all(getattr(each, key) == value for key, value in attributes.items()))


FRESH_SECONDS = 2.0
SHARE = (
    20  # a count that took a second is fresh for so many, so that looking costs a twentieth of a processor at most
)
LONGEST_FRESH = 30.0  # seconds: one slow moment of the database must not make everybody look at the past for long
OLD = 5  # times as old as fresh ones may be: such are not shown while new ones are made
MAX_CACHED_LENGTHS = 256  # lists whose length is remembered


class FleetCounter:
    """Belongs to one event loop. How old a count is goes by a clock that nobody sets."""

    def __init__(
        self, store: Store, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._counts: tuple[float, tuple[FleetCount, ...]] = (float("-inf"), ())
        self._fresh = FRESH_SECONDS
        self._asking: asyncio.Task[None] | None = None
        self._lengths: dict[FleetQuery, tuple[float, int]] = {}

    async def counts(self) -> tuple[FleetCount, ...]:
        """Who comes a little late gets what there is, and new ones are made for the next."""
        age = self._clock() - self._counts[0]
        if age > self._fresh and self._asking is None:
            self._asking = asyncio.create_task(self._count())
        if age > self._fresh * OLD and self._asking:
            await asyncio.shield(self._asking)
        return self._counts[1]

    async def _count(self) -> None:
        try:
            began = self._clock()
            self._counts = (began, await self._store.fleet_counts(self._now()))
            self._fresh = min(max(FRESH_SECONDS, SHARE * (self._clock() - began)), LONGEST_FRESH)
        finally:
            self._asking = None

    async def length(self, query: FleetQuery) -> int:
        """Of the list without regard to its order and part."""
        known = self._lengths.get(query)
        began = self._clock()
        if known and began - known[0] < FRESH_SECONDS:
            return known[1]
        found = await self._store.count_fleet(query, self._now())
        if len(self._lengths) >= MAX_CACHED_LENGTHS:
            self._lengths.clear()
        self._lengths[query] = (began, found)
        return found
