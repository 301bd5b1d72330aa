"""Reads nodes: one by name, or the pages of a list with `$filter`, `$top` and `$skipToken`."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.resource import view
from aks_flex_rp.store.model import RefusedNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.store.model import Node, NodePage


_COMPARISON = re.compile(
    r"\s*(?P<field>[A-Za-z]+(?:/[^\s']+)?)\s+(?P<verb>eq|ne)\s+'(?P<value>(?:[^']|'')*)'\s*", re.IGNORECASE
)
POOL_FIELD = "poolName"
_AND = re.compile(r"and\s", re.IGNORECASE)
FIELDS = "ready, version, joinState, poolName and labels/KEY"


@dataclass(frozen=True)
class FilterComparison:
    field: str
    value: str
    equal: bool

    @property
    def names_pool(self) -> bool:
        return self.field == POOL_FIELD and self.equal

    def matches(self, resource: dict[str, Any], version: str, effective: dict[str, Any] | None = None) -> bool:
        """Compares a field of the resource, its Kubernetes version, or a label of its effective properties."""
        properties = resource["properties"]
        found = self._found(properties, version, properties if effective is None else effective)
        return (found == self.value) is self.equal

    def _found(self, properties: dict[str, Any], version: str, effective: dict[str, Any]) -> str | None:
        if self.field == "version":
            return version
        if self.field.startswith("labels/"):
            labels: dict[str, str] = effective.get("nodeConfig", {}).get("labels", {})
            return labels.get(self.field.removeprefix("labels/"))
        return _PLAIN[self.field](properties)


def _ready(properties: dict[str, Any]) -> str:
    conditions = properties["status"].get("conditions", ())
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "Unknown")


_PLAIN: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "ready": _ready,
    "joinState": lambda properties: properties["status"].get("joinState"),
    POOL_FIELD: lambda properties: properties.get("poolName"),
}
_NAMES = {name.lower(): name for name in (*_PLAIN, "version")}


def parse_filter(text: str) -> list[FilterComparison] | Problem:
    comparisons: list[FilterComparison] = []
    position = 0
    while True:
        found = _COMPARISON.match(text, position)
        field = _field(found["field"]) if found else None
        if found is None or field is None:
            return _wrong(text)
        comparisons.append(FilterComparison(field, found["value"].replace("''", "'"), found["verb"].lower() == "eq"))
        position = found.end()
        if position == len(text):
            return comparisons
        joined = _AND.match(text, position)
        if joined is None:
            return _wrong(text)
        position = joined.end()


def _field(text: str) -> str | None:
    head, slash, key = text.partition("/")
    if slash:
        return f"labels/{key}" if head.lower() == "labels" else None
    return _NAMES.get(text.lower())


def _wrong(text: str) -> Problem:
    return Problem(
        "$filter",
        f"'{text[:200]}' is not a valid filter. Use FIELD eq 'VALUE' or FIELD ne 'VALUE', joined by `and`. "
        f"Fields: {FIELDS}.",
    )


MAX_PAGE = 1000
DEFAULT_PAGE = 100
READ_BATCH = 500  # nodes per read from the store if a filter may exclude most of them
MAX_SCANNED = 2_000  # nodes that one request reads; a selective filter returns early with a nextLink


@dataclass(frozen=True)
class ListQuery:
    """Parsed query of a list request: filter, page size and start."""

    comparisons: tuple[FilterComparison, ...] = ()
    top: int = DEFAULT_PAGE
    after: str = ""

    @property
    def excludes_read_nodes(self) -> bool:
        """Whether the filter may exclude nodes that were read. Of a pool, only its nodes are read."""
        return len(self.comparisons) > any(each.names_pool for each in self.comparisons)


def parse_list_query(filter_text: str | None, top_text: str | None, token: str | None) -> ListQuery:
    """Parses the query. Raises ArmError with all problems."""
    problems: list[Problem] = []
    comparisons: tuple[FilterComparison, ...] = ()
    if filter_text is not None:
        parsed = parse_filter(filter_text)
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            comparisons = tuple(parsed)
    top = DEFAULT_PAGE if top_text is None else _top(top_text)
    if top is None:
        problems.append(Problem("$top", f"The value must be a number from 1 to {MAX_PAGE}."))
    after = _after(token) if token else ""
    if after is None:
        problems.append(
            Problem(
                "$skipToken",
                "The value is not a valid continuation token. Use the nextLink of the previous page unchanged.",
            )
        )
    if problems or top is None or after is None:
        raise errors.invalid_request(problems)
    return ListQuery(comparisons, top, after)


def _top(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return number if 1 <= number <= MAX_PAGE else None


def skip_token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _after(token: str) -> str | None:
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return key if key.isprintable() else None


@dataclass(frozen=True)
class NodeQueries:
    context: NodeContext

    async def get(
        self, cluster: ClusterInfo, name: str, request: RequestContext | None = None
    ) -> tuple[Node, dict[str, Any]]:
        """Returns a node and its resource. Raises ArmError if there is none (see `NodeContext.missing_node`)."""
        node = await self.context.store.node(cluster.key, name.lower())
        if node is None:
            raise await self.context.missing_node(cluster, name, request)
        return node, self.resource(cluster, node)

    def resource(self, cluster: ClusterInfo, node: Node, *, whole: bool = True) -> dict[str, Any]:
        if (last_seen := self.context.last_seen(node.cluster, node.key)) > node.last_seen:
            node = replace(node, last_seen=last_seen)
        return view.node_resource(node, cluster.id, self.context.now(), whole=whole)

    def _list_entry(self, cluster: ClusterInfo, node: Node | RefusedNode) -> tuple[dict[str, Any], str]:
        """Returns what a list shows of a node, and its Kubernetes version, which is not known of a refused one."""
        if isinstance(node, RefusedNode):
            return view.refused_node_resource(node, cluster.id), ""
        return self.resource(cluster, node, whole=False), node.config["kubernetes"]["version"]

    async def _page(self, cluster: ClusterInfo, query: ListQuery, after: str, limit: int) -> NodePage:
        """Reads nodes of the cluster, or only those of the pool that the filter names."""
        store, key = self.context.store, cluster.key
        pool = next((each.value for each in query.comparisons if each.names_pool), None)
        return await (store.nodes(key, after, limit) if pool is None else store.pool_nodes(key, pool, after, limit))

    async def list(self, cluster: ClusterInfo, query: ListQuery) -> tuple[list[dict[str, Any]], str | None]:
        """Returns a page, and the start of the next one."""
        found: list[dict[str, Any]] = []
        after, looked_at = query.after, 0
        while True:
            limit = READ_BATCH if query.excludes_read_nodes else query.top
            page = await self._page(cluster, query, after, limit)
            entries: list[Node | RefusedNode] = [*page.nodes, *page.refused]
            for node in sorted(entries, key=attrgetter("key")):
                resource, version = self._list_entry(cluster, node)
                effective = {} if isinstance(node, RefusedNode) else node.effective
                if all(each.matches(resource, version, effective) for each in query.comparisons):
                    if len(found) == query.top:
                        return found, skip_token(after)
                    found.append(resource)
                after = node.key
            looked_at += len(page.nodes) + len(page.refused)
            if page.after is None:
                return found, None
            if looked_at >= MAX_SCANNED or not query.excludes_read_nodes:
                return found, skip_token(page.after)
