"""This machine's Node: what it says of itself, and what its own certificate may do with it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.api import PATCH, Refused
from aks_flex_node.agent.words import counted
from aks_flex_node.api.node_marks import CORDONED, LEFT

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
    runtime: str = ""  # what runs its containers, `containerd://2.4.2`
    cordoned_by_us: bool = False  # for an update, and so for us to take back

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
            document.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", ""),
            CORDONED in document["metadata"].get("annotations", {}),
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


def bring_labels(api: Api, node: Node, wanted: Mapping[str, str], earlier: frozenset[str]) -> list[str]:
    """Put on a Node what it is to bear, and take off what we put there earlier; the keys that had to be changed."""
    there = dict(node.labels)
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if there.get(key) != value}
    changes.update({key: None for key in earlier - set(wanted) if key in there})
    if changes:
        set_labels(api, node.name, changes)
    return sorted(changes)


def cordon(api: Api, name: str) -> None:
    """Let no new pods come."""
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"spec": {"unschedulable": True}}, PATCH)


def cordon_for_update(api: Api, name: str) -> None:
    """The same, and say in the same breath that it was us."""
    changes = {"metadata": {"annotations": {CORDONED: _now()}}, "spec": {"unschedulable": True}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, PATCH)


def uncordon(api: Api, name: str) -> bool:
    """Let pods come again to a node that we cordoned for an update; whether we had."""
    node = find(api, name)
    if node is None or not node.cordoned_by_us:
        return False
    changes = {"metadata": {"annotations": {CORDONED: None}}, "spec": {"unschedulable": None}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, PATCH)
    return True


def come_back(api: Api, name: str) -> None:
    """Take back what we said and did when we left, so that pods may come again."""
    changes = {"metadata": {"annotations": {LEFT: None, CORDONED: None}}, "spec": {"unschedulable": None}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, PATCH)


def say_left(api: Api, name: str) -> None:
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"metadata": {"annotations": {LEFT: _now()}}}, PATCH)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def delete(api: Api, name: str) -> bool:
    """Take the Node out of the cluster; whether we may."""
    try:
        api.request("DELETE", f"/api/v1/nodes/{quote(name)}")
    except Refused as refusal:
        return refusal.status == 404
    return True


def pods(api: Api, name: str) -> list[dict[str, Any]]:
    """All pods on a node."""
    listed = api.get(f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={name}')}")
    return [dict(pod) for pod in listed.get("items", [])]


def movable(pod: Mapping[str, Any]) -> bool:
    """Whether eviction can move it: not one of a daemon set, nor one that is a file here."""
    metadata = pod["metadata"]
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences", [])}
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return not static and "DaemonSet" not in owners


def evict(api: Api, pod: Mapping[str, Any]) -> str:
    """Ask for a pod to go; what is said when a disruption budget does not let it go yet, else nothing."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    try:
        api.request("POST", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction", body)
    except Refused as refusal:
        if refusal.status == 429:
            return refusal.message
        if refusal.status != 404:
            raise
    return ""


def move_pods(
    api: Api,
    name: str,
    seconds: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Move pods away, within a bound; those that stayed, and who said last why they may not go."""
    end = clock() + seconds
    left = [pod for pod in pods(api, name) if movable(pod)]
    if left:
        say(f"draining {counted(len(left), 'pod')}")
    reasons: dict[str, str] = {}
    pause = 0.2
    while left and clock() < end:
        for pod in left:
            reasons[full_name(pod)] = _told_to_go(api, pod)
        sleep(pause)
        pause = min(2.0, pause * 1.3)  # a budget that says no is not asked too often
        left = [pod for pod in pods(api, name) if movable(pod)]
    return {name: reasons.get(name, "") for name in map(full_name, left)}


def _told_to_go(api: Api, pod: Mapping[str, Any]) -> str:
    """Why it does not go yet, as far as anybody says."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is still ending"
    try:
        return evict(api, pod)
    except Refused as refusal:
        return refusal.message


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
