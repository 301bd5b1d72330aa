"""The first page: how the fleet is, and a list of its nodes that is searched, filtered, sorted and paged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import urlencode

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.store.fleet import STATES, FleetQuery, Sort, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.responses import Response

    from aks_flex_node.rp.dashboard.counting import Counting
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes, Shown
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.store.fleet import Count

PAGE = 50
LONGEST_SEARCH = 200
WORDS: dict[State, str] = {
    "Ready": "Ready",
    "NotReady": "Not ready",
    "Silent": "Silent",
    "Unknown": "Unknown",
    "Failed": "Join failed",
    "Joining": "Joining",
}
MOST_VERSIONS = 6


@dataclass(frozen=True)
class Segment:
    """A part of a bar, and what it stands for."""

    name: str
    word: str
    nodes: int
    start: float  # in a bar of 100
    width: float


@dataclass(frozen=True)
class Fleet:
    pages: Pages
    scopes: Scopes
    counting: Counting

    async def show(self, visit: Visit) -> Response:
        if wait := self.scopes.doors.over_limit(visit.caller, None, "read"):
            raise errors.too_many(wait)
        clusters = await self.scopes.clusters(visit.caller)
        asked = wanted(visit.query, clusters)
        now = self.scopes.doors.shop.now()
        counts = _of(await self.counting.counts(), asked.places)
        entries = await self.scopes.doors.shop.store.fleet(asked, now) if asked.places else ()
        total = asked.offset + len(entries)
        if len(entries) == PAGE or (asked.offset and not entries):  # else these are the last ones
            total = await self.counting.length(replace(asked, sort="name", descending=False, offset=0, limit=1))
        page = asked.offset // PAGE + 1
        return self.pages.show(
            "fleet",
            visit,
            clusters=clusters,
            by_place={each.place: each for each in clusters},
            asked=asked,
            entries=entries,
            total=total,
            page=page,
            last_page=max(1, -(-total // PAGE)),
            states=segments((state, WORDS[state], _sum(counts, state=state)) for state in STATES),
            versions=_versions(counts),
            everything=_sum(counts),
            behind=_sum(counts, behind=True),
            trouble=_sum(counts, trouble=True),
            words=WORDS,
            link=Links(visit.query),
        )


@dataclass(frozen=True)
class Links:
    """The same list with something else about it."""

    query: Mapping[str, str]

    def __call__(self, **changes: Any) -> str:
        kept = {name: value for name, value in self.query.items() if name != "page"}
        words = {name: str(value) for name, value in {**kept, **changes}.items() if value}
        return f"/?{urlencode(words)}" if words else "/"

    def sort(self, name: str) -> str:
        turned = self.query.get("sort", "name") == name and self.query.get("order") != "desc"
        return self(sort=name, order="desc" if turned else "")


def wanted(query: Mapping[str, str], clusters: Sequence[Shown]) -> FleetQuery:
    """What an address asks for. What it cannot mean is left out: an old link still leads somewhere."""
    chosen = query.get("cluster", "").lower()
    places = tuple(each.place for each in clusters if each.place and chosen in {"", each.id.key})
    page = query.get("page", "1")
    number = int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1
    state, sort = query.get("state", ""), query.get("sort", "name")
    return FleetQuery(
        places,
        search=query.get("search", "")[:LONGEST_SEARCH],
        state=state if state in STATES else "",
        version=query.get("version", "")[:64],
        trouble=query.get("trouble") == "yes",
        behind=query.get("behind") == "yes",
        sort=cast("Sort", sort) if sort in get_args(Sort) else "name",
        descending=query.get("order") == "desc",
        offset=(max(number, 1) - 1) * PAGE,
        limit=PAGE,
    )


def segments(parts: Iterable[tuple[str, str, int]]) -> list[Segment]:
    """Those that there are, side by side; none so thin that nobody sees it."""
    there = [part for part in parts if part[2]]
    total = sum(nodes for _, _, nodes in there)
    widths = [max(nodes / total * 100, 1.0) for _, _, nodes in there]
    scale = 100 / sum(widths) if widths else 1.0
    found, start = [], 0.0
    for (name, word, nodes), width in zip(there, widths, strict=True):
        found.append(Segment(name, word, nodes, round(start, 3), round(width * scale, 3)))
        start += width * scale
    return found


def _versions(counts: Sequence[Count]) -> list[Segment]:
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


def _of(counts: Iterable[Count], places: Sequence[int]) -> list[Count]:
    return [each for each in counts if each.place in places]


def _sum(counts: Iterable[Count], **wanted: Any) -> int:
    return sum(each.nodes for each in counts if all(getattr(each, key) == value for key, value in wanted.items()))
