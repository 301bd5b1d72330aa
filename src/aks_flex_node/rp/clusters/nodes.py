"""Nodes as the cluster sees them: who is ready, with which kubelet, and who has left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.api.contract import LEFT_ANNOTATION, MANAGED_LABEL
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.listener import Listener

NODES = "/api/v1/nodes"
AGAIN_SECONDS = 60.0  # after which the same is told again: the resource may be a new one


class Onlooker(Protocol):
    """Who is told of every Node that the watch sees, and has not left."""

    def saw(self, node: Object) -> None: ...

    def gone(self, name: str) -> None: ...


class NodeWatch:
    def __init__(self, cluster: str, client: Client, listener: Listener, *onlookers: Onlooker) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._onlookers = onlookers
        self._names: set[str] = set()
        self._known: dict[str, tuple[Any, ...]] = {}  # of every flex node, what was last told
        self._told: dict[str, float] = {}  # and when

    async def listed(self, items: list[Object]) -> None:
        names = frozenset(item["metadata"]["name"] for item in items)
        for gone in self._names - names:
            self._forget(gone)
        await self._listener.present(self._cluster, names)
        await each(items, lambda item: self.changed("ADDED", item))

    async def changed(self, kind: str, item: Object) -> None:
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
                await self._tell(name, ready)

    async def _tell(self, name: str, ready: dict[str, Any]) -> None:
        news, now = worth_telling(ready), time.monotonic()
        if self._known.get(name) == news and now - self._told[name] < AGAIN_SECONDS:
            return
        if await self._listener.expects_node(self._cluster, name):
            await self._listener.observed(self._cluster, name, ready)
            self._known[name], self._told[name] = news, now

    async def _gone(self, name: str) -> None:
        if await self._listener.expects_node(self._cluster, name):
            await self._listener.observed(self._cluster, name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._names.discard(name)
        for onlooker in self._onlookers:
            onlooker.gone(name)
        self._known.pop(name, None)
        self._told.pop(name, None)


def has_left(node: Object) -> bool:
    """By its own last word, after it let no more pods come."""
    return LEFT_ANNOTATION in (node["metadata"].get("annotations") or {}) and bool(
        node.get("spec", {}).get("unschedulable")
    )


async def taken(client: Client, name: str) -> str:
    """Why no flex node may have this name; empty when it may, also because it has it already and comes back."""
    node = await client.find(f"{NODES}/{name}")
    if node is None or is_ours(node):
        return ""
    return f"The cluster has a Node {name} that is not a flex node."


def is_ours(node: Object) -> bool:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return MANAGED_LABEL.items() <= labels.items() or LEFT_ANNOTATION in (metadata.get("annotations") or {})


def ready_condition(node: Object) -> dict[str, Any] | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), None)


def readiness(node: Object) -> dict[str, Any]:
    """Its Ready condition with its kubelet's version; empty when it has not said anything yet."""
    ready = ready_condition(node)
    if not ready:
        return {}
    return {**ready, "kubeletVersion": (node["status"].get("nodeInfo") or {}).get("kubeletVersion", "")}


def worth_telling(ready: dict[str, Any]) -> tuple[Any, ...]:
    """What differs when something has changed, and not at every heartbeat."""
    return ready["status"], ready.get("reason"), ready["kubeletVersion"]
