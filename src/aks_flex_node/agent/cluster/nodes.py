"""This machine's Node: what it says of itself, and what its own certificate may do with it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.api import PATCH, Refused
from aks_flex_node.agent.words import counted
from aks_flex_node.api.node_marks import LEFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.cluster.api import Api


@dataclass(frozen=True)
class Node:
    name: str
    ready: bool
    reported: str  # when the kubelet last said so, as the API server writes times
    reason: str
    message: str
    pod_cidr: str
    cordoned: bool
    left: bool  # it said so when it went, and was cordoned by itself
    conditions: tuple[tuple[str, str], ...]
    version: str
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Node:
        conditions = document.get("status", {}).get("conditions", [])
        ready: Mapping[str, str] = next((one for one in conditions if one["type"] == "Ready"), {})
        spec = document.get("spec", {})
        return cls(
            document["metadata"]["name"],
            ready.get("status") == "True",
            ready.get("lastHeartbeatTime", ""),
            ready.get("reason", ""),
            ready.get("message", ""),
            spec.get("podCIDR", ""),
            bool(spec.get("unschedulable")),
            LEFT in document["metadata"].get("annotations", {}),
            tuple((one["type"], one["status"]) for one in conditions),
            document.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""),
            tuple(sorted(document["metadata"].get("labels", {}).items())),
            tuple((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints", [])),
        )


def find(api: Api, name: str) -> Node | None:
    try:
        return Node.read(api.get(f"/api/v1/nodes/{quote(name)}"))
    except Refused as refusal:
        # Before its Node exists, a node's certificate is refused rather than told that there is none.
        if refusal.status in {403, 404}:
            return None
        raise


def is_missing(api: Api, name: str) -> bool:
    """Whether the cluster says that it has no such node."""
    try:
        api.get(f"/api/v1/nodes/{quote(name)}")
    except Refused as refusal:
        return refusal.status == 404
    return False


def set_labels(api: Api, name: str, labels: Mapping[str, str | None]) -> None:
    """Put labels on a node; one without a value goes."""
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"metadata": {"labels": dict(labels)}}, PATCH)


def cordon(api: Api, name: str) -> None:
    """Let no new pods come."""
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"spec": {"unschedulable": True}}, PATCH)


def come_back(api: Api, name: str) -> None:
    """Take back what we said and did when we left, so that pods may come again."""
    changes = {"metadata": {"annotations": {LEFT: None}}, "spec": {"unschedulable": None}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, PATCH)


def say_left(api: Api, name: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"metadata": {"annotations": {LEFT: now}}}, PATCH)


def delete(api: Api, name: str) -> bool:
    """Take the Node out of the cluster; whether we may."""
    try:
        api.request("DELETE", f"/api/v1/nodes/{quote(name)}")
    except Refused as refusal:
        return refusal.status == 404
    return True


def pods(api: Api, name: str) -> list[dict[str, Any]]:
    """The pods on a node that eviction can move: not those of a daemon set, nor those that are a file here."""
    listed = api.get(f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={name}')}")
    return [pod for pod in listed.get("items", []) if _movable(pod)]


def _movable(pod: Mapping[str, Any]) -> bool:
    metadata = pod["metadata"]
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences", [])}
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return not static and "DaemonSet" not in owners


def evict(api: Api, pod: Mapping[str, Any]) -> bool:
    """Ask for a pod to go; False when a disruption budget does not let it go yet."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    try:
        api.request("POST", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction", body)
    except Refused as refusal:
        if refusal.status == 429:
            return False
        if refusal.status != 404:
            raise
    return True


def drain(
    api: Api,
    name: str,
    seconds: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Move all pods away, within a bound; the names of those that stayed."""
    cordon(api, name)
    end = clock() + seconds
    left = pods(api, name)
    if left:
        say(f"draining {counted(len(left), 'pod')}")
    pause = 0.2
    while left and clock() < end:
        for pod in left:
            if not pod["metadata"].get("deletionTimestamp"):
                with contextlib.suppress(Refused):
                    evict(api, pod)
        sleep(pause)
        pause = min(2.0, pause * 1.3)  # a budget that says no is not asked too often
        left = pods(api, name)
    return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in left]
