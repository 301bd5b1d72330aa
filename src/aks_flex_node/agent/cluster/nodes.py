"""The Node object: read, label, cordon, drain, and remove it when the machine leaves the cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.client import STRATEGIC_MERGE_PATCH, ApiStatusError
from aks_flex_node.agent.text import pluralize
from aks_flex_node.api.contract import CORDONED_ANNOTATION, LEFT_ANNOTATION
from aks_flex_node.errors import ClusterError
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.cluster.client import ApiClient


@dataclass(frozen=True)
class ClusterNode:
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
    def read(cls, document: Mapping[str, Any]) -> ClusterNode:
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
            LEFT_ANNOTATION in document["metadata"].get("annotations", {}),
            tuple((one["type"], one["status"]) for one in conditions),
            document.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""),
            tuple(sorted(document["metadata"].get("labels", {}).items())),
            tuple((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints", [])),
            document.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", ""),
            CORDONED_ANNOTATION in document["metadata"].get("annotations", {}),
        )


def find(api: ApiClient, name: str) -> ClusterNode | None:
    try:
        return ClusterNode.read(api.get(f"/api/v1/nodes/{quote(name)}"))
    except ApiStatusError as refusal:
        # Before its Node exists, a node's certificate is refused rather than told that there is none.
        if refusal.status in {403, 404}:
            return None
        raise


def is_missing(api: ApiClient, name: str) -> bool:
    """Whether the cluster says that it has no such node."""
    try:
        api.get(f"/api/v1/nodes/{quote(name)}")
    except ApiStatusError as refusal:
        return refusal.status == 404
    return False


def set_labels(api: ApiClient, name: str, labels: Mapping[str, str | None]) -> None:
    """Put labels on a node; one without a value goes."""
    api.request(
        "PATCH", f"/api/v1/nodes/{quote(name)}", {"metadata": {"labels": dict(labels)}}, STRATEGIC_MERGE_PATCH
    )


def sync_labels(api: ApiClient, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> list[str]:
    """Put on a Node what it is to bear, and take off what we put there earlier; the keys that had to be changed."""
    there = dict(node.labels)
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if there.get(key) != value}
    changes.update({key: None for key in earlier - set(wanted) if key in there})
    if changes:
        set_labels(api, node.name, changes)
    return sorted(changes)


def cordon(api: ApiClient, name: str) -> None:
    """Let no new pods come."""
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", {"spec": {"unschedulable": True}}, STRATEGIC_MERGE_PATCH)


def cordon_for_update(api: ApiClient, name: str) -> None:
    """The same, and say in the same breath that it was us."""
    changes = {"metadata": {"annotations": {CORDONED_ANNOTATION: format_utc()}}, "spec": {"unschedulable": True}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, STRATEGIC_MERGE_PATCH)


def uncordon(api: ApiClient, name: str) -> bool:
    """Let pods come again to a node that we cordoned for an update; whether we had."""
    node = find(api, name)
    if node is None or not node.cordoned_by_us:
        return False
    changes = {"metadata": {"annotations": {CORDONED_ANNOTATION: None}}, "spec": {"unschedulable": None}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, STRATEGIC_MERGE_PATCH)
    return True


def readmit(api: ApiClient, name: str) -> None:
    """Take back what we said and did when we left, so that pods may come again."""
    changes = {
        "metadata": {"annotations": {LEFT_ANNOTATION: None, CORDONED_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, STRATEGIC_MERGE_PATCH)


def mark_left(api: ApiClient, name: str) -> None:
    api.request(
        "PATCH",
        f"/api/v1/nodes/{quote(name)}",
        {"metadata": {"annotations": {LEFT_ANNOTATION: format_utc()}}},
        STRATEGIC_MERGE_PATCH,
    )


def delete(api: ApiClient, name: str) -> bool:
    """Take the Node out of the cluster; whether we may."""
    try:
        api.request("DELETE", f"/api/v1/nodes/{quote(name)}")
    except ApiStatusError as refusal:
        return refusal.status == 404
    return True


def pods(api: ApiClient, name: str) -> list[dict[str, Any]]:
    """All pods on a node."""
    listed = api.get(f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={name}')}")
    return [dict(pod) for pod in listed.get("items", [])]


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Whether eviction can move it: not one of a daemon set, nor one that is a file here."""
    metadata = pod["metadata"]
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences", [])}
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return not static and "DaemonSet" not in owners


def evict(api: ApiClient, pod: Mapping[str, Any]) -> str:
    """Ask for a pod to go; what is said when a disruption budget does not let it go yet, else nothing."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    try:
        api.request("POST", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction", body)
    except ApiStatusError as refusal:
        if refusal.status == 429:
            return refusal.message
        if refusal.status != 404:
            raise
    return ""


def drain_pods(
    api: ApiClient,
    name: str,
    seconds: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Move pods away, within a bound; those that stayed, and who said last why they may not go."""
    end = clock() + seconds
    left = [pod for pod in pods(api, name) if is_evictable(pod)]
    if left:
        say(f"draining {pluralize(len(left), 'pod')}")
    reasons: dict[str, str] = {}
    pause = 0.2
    while left and clock() < end:
        for pod in left:
            reasons[full_name(pod)] = _evict_or_reason(api, pod)
        sleep(pause)
        pause = min(2.0, pause * 1.3)  # a budget that says no is not asked too often
        left = [pod for pod in pods(api, name) if is_evictable(pod)]
    return {name: reasons.get(name, "") for name in map(full_name, left)}


def _evict_or_reason(api: ApiClient, pod: Mapping[str, Any]) -> str:
    """Why it does not go yet, as far as anybody says."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is still ending"
    try:
        return evict(api, pod)
    except ApiStatusError as refusal:
        return refusal.message


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


DELETE_CHECK_SECONDS = 0.1


@dataclass(frozen=True)
class NodeRemoval:
    api: ApiClient
    node: str
    drain_seconds: float = 30.0  # for pods to go
    delete_seconds: float = 0.0  # seconds for a resource provider to take the Node away, where there is one

    def run(self, note: Callable[[str], None]) -> list[str]:
        """Drain, say that we leave, take the Node away; what is left for a person to type."""
        by_hand = [f"kubectl delete node {self.node}"]
        try:
            node = find(self.api, self.node)
            if node is None:
                missing = is_missing(self.api, self.node)
                note(
                    f"the cluster has no node {self.node}"
                    if missing
                    else f"this machine may not see node {self.node}"
                )
                return [] if missing else by_hand
            cordon(self.api, self.node)
            if stayed := drain_pods(self.api, self.node, self.drain_seconds, note):
                note(f"these pods did not go within {self.drain_seconds:.0f} s: {', '.join(stayed)}")
            mark_left(self.api, self.node)
            if delete(self.api, self.node):
                note(f"node {self.node} is out of the cluster")
                return []
            if self._wait_until_deleted():
                note(f"the resource provider took node {self.node} out of the cluster")
                return []
            note(f"a node's own certificate may not delete node {self.node}; it is cordoned and marked as left")
        except (ClusterError, ApiStatusError) as error:
            note(f"the cluster was not told: {error}")
        return by_hand

    def _wait_until_deleted(self) -> bool:
        end = time.monotonic() + self.delete_seconds
        while time.monotonic() < end:
            if is_missing(self.api, self.node):
                return True
            time.sleep(DELETE_CHECK_SECONDS)
        return False
