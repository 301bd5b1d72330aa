"""Node controller: observes the Nodes of a cluster and reports readiness and departures.

Also deletes Nodes whose resource was deleted and whose machine was NotReady for the grace period.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.api.contract import (
    APPLIED_TIME_ANNOTATION,
    APPLIED_VERSION_ANNOTATION,
    LEFT_ANNOTATION,
    MANAGED_LABEL,
)
from aks_flex_node.api.machine_identity import MachineIdentity, hash_machine_id
from aks_flex_node.timestamps import parse_utc
from aks_flex_rp.clusters.informer import handle_each

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler


NODES = "/api/v1/nodes"
REPEAT_SECONDS = 60.0  # after which an unchanged state is reported again: the resource may have been re-created


class NodeObserver(Protocol):
    """Receives every Node that the watch reports, except those that left."""

    def observe(self, node: KubeObject) -> None: ...

    def gone(self, name: str) -> None: ...


class NodeController:
    def __init__(
        self, cluster: str, client: KubeClient, handler: ClusterEventHandler, *observers: NodeObserver
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._observers = observers
        self._names: set[str] = set()
        self._known: dict[str, tuple[Any, ...]] = {}  # last reported state of every flex node
        self._reported: dict[str, float] = {}  # time of that report

    async def listed(self, items: list[KubeObject]) -> None:
        names = frozenset(item["metadata"]["name"] for item in items)
        for gone in self._names - names:
            self._forget(gone)
        await self._handler.on_nodes_listed(self._cluster, names)
        await handle_each(items, lambda item: self.changed("ADDED", item))

    async def changed(self, kind: str, item: KubeObject) -> None:
        name = item["metadata"]["name"]
        if kind == "DELETED":
            if await self._handler.is_flex_node(self._cluster, name):
                await self._handler.on_node_observed(self._cluster, name, None)
            self._forget(name)
        elif has_left(item):
            metadata = item["metadata"]
            # Only this version of the Node: if the machine rejoins now, it removes its annotation and the Node is
            # kept.
            await self._client.delete(
                f"{NODES}/{name}", {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            )
        else:
            self._names.add(name)
            for observer in self._observers:
                observer.observe(item)
            if ready := readiness(item):
                await self._report(name, ready)

    async def _report(self, name: str, ready: dict[str, Any]) -> None:
        fields, now = reported_fields(ready), time.monotonic()
        if self._known.get(name) == fields and now - self._reported[name] < REPEAT_SECONDS:
            return
        if await self._handler.is_flex_node(self._cluster, name):
            await self._handler.on_node_observed(self._cluster, name, ready)
            self._known[name], self._reported[name] = fields, now

    def _forget(self, name: str) -> None:
        self._names.discard(name)
        for observer in self._observers:
            observer.gone(name)
        self._known.pop(name, None)
        self._reported.pop(name, None)


def has_left(node: KubeObject) -> bool:
    """Returns whether the node reported that it left, after cordoning itself."""
    return LEFT_ANNOTATION in (node["metadata"].get("annotations") or {}) and bool(
        node.get("spec", {}).get("unschedulable")
    )


async def name_conflict(client: KubeClient, name: str) -> str:
    """Returns why no flex node may use this name, or an empty string if it may. A rejoining flex node may."""
    node = await client.find(f"{NODES}/{name}")
    if node is None or is_flex_node(node):
        return ""
    return f"The cluster already has a Node {name} that is not a flex node."


def is_flex_node(node: KubeObject) -> bool:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return MANAGED_LABEL.items() <= labels.items() or LEFT_ANNOTATION in (metadata.get("annotations") or {})


def ready_condition(node: KubeObject) -> dict[str, Any] | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), None)


@dataclass(frozen=True)
class NodeMachine:
    """The machine that a Node describes, and whether it is Ready."""

    machine: MachineIdentity
    ready: bool


def node_machine(node: KubeObject) -> NodeMachine | None:
    """Returns the machine of a Node, or None if its kubelet has not reported it yet."""
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    known = hash_machine_id(str(info.get("machineID", "")))
    if not known:
        return None
    addresses = {str(each["type"]): str(each["address"]) for each in reversed(status.get("addresses") or [])}
    # The kubelet reports the name of the node as the host name, which says nothing about the machine.
    machine = MachineIdentity(known, "", addresses.get("InternalIP", ""), str(info.get("osImage", "")))
    return NodeMachine(machine, (ready_condition(node) or {}).get("status") == "True")


def readiness(node: KubeObject) -> dict[str, Any]:
    """Returns the Ready condition with the kubelet's version, the machine and the applied configuration.

    Returns an empty dict if there is none yet.
    """
    ready = ready_condition(node)
    if not ready:
        return {}
    annotations, found = node["metadata"].get("annotations") or {}, node_machine(node)
    return {
        **ready,
        "kubeletVersion": (node["status"].get("nodeInfo") or {}).get("kubeletVersion", ""),
        "appliedConfigVersion": annotations.get(APPLIED_VERSION_ANNOTATION, ""),
        "lastConfigApplied": annotations.get(APPLIED_TIME_ANNOTATION, ""),
        **({"machine": found.machine} if found else {}),
    }


def reported_fields(ready: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the fields whose change is reported, without the heartbeat time."""
    names = ("status", "reason", "kubeletVersion", "appliedConfigVersion", "lastConfigApplied")
    machine = ready.get("machine")
    return (*(ready.get(name) for name in names), machine.id if machine else "")


LOST_AFTER_SECONDS = 3600.0

log = logging.getLogger(__name__)


@dataclass
class LostNodeCollector:
    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    gone_after: float = LOST_AFTER_SECONDS
    not_ready: set[str] = field(default_factory=set)

    def observe(self, node: KubeObject) -> None:
        name = node["metadata"]["name"]
        if is_flex_node(node) and not_ready_since(node) is not None:
            self.not_ready.add(name)
        else:
            self.not_ready.discard(name)

    def gone(self, name: str) -> None:
        self.not_ready.discard(name)

    async def clean_up(self) -> None:
        """Deletes lost Nodes whose grace period is over, which no event reports."""
        await handle_each(list(self.not_ready), self._check)

    async def _check(self, name: str) -> None:
        deleted = await self.handler.deletion_time(self.cluster, name)
        if deleted is None or time.time() - deleted < self.gone_after:
            return
        node = await self.client.find(f"{NODES}/{name}")
        if node is None or not is_flex_node(node) or not self._is_lost(node, deleted):
            return
        # Only this version of the Node: one that becomes Ready now is kept.
        seen = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        if await self.client.delete(f"{NODES}/{name}", seen):
            log.info(
                "%s: deleted the Node %s: its resource was deleted and its machine does not respond.",
                self.cluster,
                name,
            )
            await self.handler.on_node_removed(self.cluster, name)

    def _is_lost(self, node: KubeObject, deleted: float) -> bool:
        """Returns whether the Node has been NotReady for the grace period.

        A Node created after the deletion is not lost.
        """
        if parse_utc(node["metadata"]["creationTimestamp"]).timestamp() > deleted:
            return False
        since = not_ready_since(node)
        return since is not None and time.time() - max(since, deleted) >= self.gone_after


def not_ready_since(node: KubeObject) -> float | None:
    """Returns since when the Node is NotReady, or None if it is Ready. Without a condition, since its creation."""
    ready = ready_condition(node) or {}
    if ready.get("status") == "True":
        return None
    return parse_utc(ready.get("lastTransitionTime") or node["metadata"]["creationTimestamp"]).timestamp()
