"""Node controller: observes the Nodes of a cluster, reports readiness and departures, and deletes Nodes whose
resource was deleted and whose machine stayed away for the grace period.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.api.contract import LEFT_ANNOTATION, MANAGED_LABEL
from aks_flex_node.timestamps import parse_utc
from aks_flex_rp.clusters.informer import handle_each

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler


NODES = "/api/v1/nodes"
REPEAT_SECONDS = 60.0  # after which the same is told again: the resource may be a new one


class NodeObserver(Protocol):
    """Who is told of every Node that the watch sees, and has not left."""

    def saw(self, node: KubeObject) -> None: ...

    def gone(self, name: str) -> None: ...


class NodeController:
    def __init__(
        self, cluster: str, client: KubeClient, handler: ClusterEventHandler, *onlookers: NodeObserver
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._onlookers = onlookers
        self._names: set[str] = set()
        self._known: dict[str, tuple[Any, ...]] = {}  # of every flex node, what was last told
        self._reported: dict[str, float] = {}  # and when

    async def listed(self, items: list[KubeObject]) -> None:
        names = frozenset(item["metadata"]["name"] for item in items)
        for gone in self._names - names:
            self._forget(gone)
        await self._handler.on_nodes_listed(self._cluster, names)
        await handle_each(items, lambda item: self.changed("ADDED", item))

    async def changed(self, kind: str, item: KubeObject) -> None:
        name = item["metadata"]["name"]
        if kind == "DELETED":
            await self._gone(name)
        elif has_left(item):
            metadata = item["metadata"]
            # Only as we saw it: a machine that comes back just now takes its last word back, and stays.
            await self._client.delete(
                f"{NODES}/{name}", {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            )
        else:
            self._names.add(name)
            for onlooker in self._onlookers:
                onlooker.saw(item)
            if ready := readiness(item):
                await self._report(name, ready)

    async def _report(self, name: str, ready: dict[str, Any]) -> None:
        news, now = reported_fields(ready), time.monotonic()
        if self._known.get(name) == news and now - self._reported[name] < REPEAT_SECONDS:
            return
        if await self._handler.is_flex_node(self._cluster, name):
            await self._handler.on_node_observed(self._cluster, name, ready)
            self._known[name], self._reported[name] = news, now

    async def _gone(self, name: str) -> None:
        if await self._handler.is_flex_node(self._cluster, name):
            await self._handler.on_node_observed(self._cluster, name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._names.discard(name)
        for onlooker in self._onlookers:
            onlooker.gone(name)
        self._known.pop(name, None)
        self._reported.pop(name, None)


def has_left(node: KubeObject) -> bool:
    """By its own last word, after it let no more pods come."""
    return LEFT_ANNOTATION in (node["metadata"].get("annotations") or {}) and bool(
        node.get("spec", {}).get("unschedulable")
    )


async def name_conflict(client: KubeClient, name: str) -> str:
    """Why no flex node may have this name; empty when it may, also because it has it already and comes back."""
    node = await client.find(f"{NODES}/{name}")
    if node is None or is_flex_node(node):
        return ""
    return f"The cluster has a Node {name} that is not a flex node."


def is_flex_node(node: KubeObject) -> bool:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return MANAGED_LABEL.items() <= labels.items() or LEFT_ANNOTATION in (metadata.get("annotations") or {})


def ready_condition(node: KubeObject) -> dict[str, Any] | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), None)


def readiness(node: KubeObject) -> dict[str, Any]:
    """Its Ready condition with its kubelet's version; empty when it has not said anything yet."""
    ready = ready_condition(node)
    if not ready:
        return {}
    return {**ready, "kubeletVersion": (node["status"].get("nodeInfo") or {}).get("kubeletVersion", "")}


def reported_fields(ready: dict[str, Any]) -> tuple[Any, ...]:
    """What differs when something has changed, and not at every heartbeat."""
    return ready["status"], ready.get("reason"), ready["kubeletVersion"]


LOST_AFTER_SECONDS = 3600.0  # seconds

log = logging.getLogger(__name__)


class LostNodeCollector:
    def __init__(
        self, cluster: str, client: KubeClient, handler: ClusterEventHandler, gone_after: float = LOST_AFTER_SECONDS
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._gone_after = gone_after
        self._not_ready: set[str] = set()

    def saw(self, node: KubeObject) -> None:
        name = node["metadata"]["name"]
        if is_flex_node(node) and not_ready_since(node) is not None:
            self._not_ready.add(name)
        else:
            self._not_ready.discard(name)

    def gone(self, name: str) -> None:
        self._not_ready.discard(name)

    async def tidy(self) -> None:
        """From time to time, since no event tells that a grace is over."""
        await handle_each(list(self._not_ready), self._look)

    async def _look(self, name: str) -> None:
        deleted = await self._handler.deletion_time(self._cluster, name)
        if deleted is None or time.time() - deleted < self._gone_after:
            return
        node = await self._client.find(f"{NODES}/{name}")
        if node is None or not is_flex_node(node) or not self._is_lost(node, deleted):
            return
        # Only as we saw it: one that becomes Ready just now stays.
        seen = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        if await self._client.delete(f"{NODES}/{name}", seen):
            log.info("%s: the Node %s was deleted: its resource and its machine are gone.", self._cluster, name)
            await self._handler.on_node_removed(self._cluster, name)

    def _is_lost(self, node: KubeObject, deleted: float) -> bool:
        """Not for one that came after the deletion, which never was that resource's."""
        if parse_utc(node["metadata"]["creationTimestamp"]).timestamp() > deleted:
            return False
        since = not_ready_since(node)
        return since is not None and time.time() - max(since, deleted) >= self._gone_after


def not_ready_since(node: KubeObject) -> float | None:
    """None while it is Ready. One that never said a word has not been Ready from the beginning."""
    ready = ready_condition(node) or {}
    if ready.get("status") == "True":
        return None
    return parse_utc(ready.get("lastTransitionTime") or node["metadata"]["creationTimestamp"]).timestamp()
