"""Reading nodes: one, or those of a cluster page by page."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.resource import filters, showing

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.nodes.around import Known, Workshop
    from aks_flex_node.rp.store.store import Node

LARGEST_PAGE = 1000
USUAL_PAGE = 100
AT_ONCE = 500  # nodes that are read from the store when most of them may be filtered out
MOST = 2_000  # nodes that one request looks at: a filter that fits few answers with an early nextLink


@dataclass(frozen=True)
class Asked:
    """Which part of a list is wanted."""

    comparisons: tuple[filters.Comparison, ...] = ()
    top: int = USUAL_PAGE
    after: str = ""


def asked(filter_text: str | None, top_text: str | None, token: str | None) -> Asked:
    """Raises with all that is wrong."""
    problems: list[Problem] = []
    comparisons: tuple[filters.Comparison, ...] = ()
    if filter_text is not None:
        parsed = filters.parse(filter_text)
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            comparisons = tuple(parsed)
    top = USUAL_PAGE if top_text is None else _top(top_text)
    if top is None:
        problems.append(Problem("$top", f"The value must be a number from 1 to {LARGEST_PAGE}."))
    after = _after(token) if token else ""
    if after is None:
        problems.append(Problem("$skipToken", "This is no place to go on from. Take it from a nextLink as it is."))
    if problems or top is None or after is None:
        raise errors.invalid(problems)
    return Asked(comparisons, top, after)


def _top(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return number if 1 <= number <= LARGEST_PAGE else None


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
class Reading:
    shop: Workshop
    heard: Callable[[str, str], float]  # when a node was last heard of, where that is not in the store yet

    async def get(self, cluster: Known, name: str) -> tuple[Node, dict[str, Any]]:
        node = await self.shop.store.node(cluster.id.key, name.lower())
        if node is None:
            raise errors.no_node(cluster.id, name)
        return node, self.show(cluster, node)

    def show(self, cluster: Known, node: Node, *, whole: bool = True) -> dict[str, Any]:
        last_seen = max(node.last_seen, self.heard(node.cluster, node.key))
        return showing.resource(replace(node, last_seen=last_seen), cluster.id, self.shop.now(), whole=whole)

    async def list(self, cluster: Known, asked: Asked) -> tuple[list[dict[str, Any]], str | None]:
        """A page, and where the next one begins."""
        found: list[dict[str, Any]] = []
        after, looked_at = asked.after, 0
        while True:
            limit = AT_ONCE if asked.comparisons else asked.top
            page = await self.shop.store.nodes(cluster.id.key, after, limit)
            for node in page.nodes:
                resource = self.show(cluster, node, whole=False)
                version = node.config["kubernetes"]["version"]
                if all(comparison.holds(resource, version) for comparison in asked.comparisons):
                    if len(found) == asked.top:
                        return found, skip_token(after)
                    found.append(resource)
                after = node.key
            looked_at += len(page.nodes)
            if page.after is None:
                return found, None
            if looked_at >= MOST or not asked.comparisons:
                return found, skip_token(page.after)
