"""Operations on the Node object: read, label, cordon, drain, and remove it on unbootstrap."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.client import STRATEGIC_MERGE_PATCH, ApiClient, ApiStatusError
from aks_flex_node.agent.text import pluralize
from aks_flex_node.api.contract import (
    APPLIED_TIME_ANNOTATION,
    APPLIED_VERSION_ANNOTATION,
    CORDONED_ANNOTATION,
    LEFT_ANNOTATION,
    MACHINE_ANNOTATION,
)
from aks_flex_node.api.machine_identity import hash_machine_id
from aks_flex_node.errors import ClusterError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.progress import NoteProgress


REMOVAL_TAINT = ("kubernetes.azure.com/flex-node-deleting", "true", "NoSchedule")  # set by AKS


@frozen
class ClusterNode:
    name: str
    ready: bool
    reported: str  # last heartbeat of the Ready condition, in the API server's format
    reason: str
    message: str
    pod_cidr: str
    cordoned: bool
    left: bool  # annotated as left by an earlier unbootstrap, which also cordoned it
    conditions: tuple[tuple[str, str], ...]
    version: str
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()
    runtime: str = ""  # for example `containerd://2.4.2`; empty while the kubelet does not reach the runtime
    cordoned_by_us: bool = False  # cordoned by the agent for an update, which must uncordon it
    machine_ids: tuple[str, ...] = ()  # hashes of the machine IDs in its status and in the provider's annotation
    address: str = ""
    uid: str = ""
    boot_id: str = ""  # of the boot in which the kubelet reported

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ClusterNode:
        metadata, spec, status = document["metadata"], document.get("spec", {}), document.get("status", {})
        conditions, info = status.get("conditions", []), status.get("nodeInfo", {})
        ready: Mapping[str, str] = next((one for one in conditions if one["type"] == "Ready"), {})
        annotations = metadata.get("annotations", {})
        reported, marked = hash_machine_id(info.get("machineID", "")), annotations.get(MACHINE_ANNOTATION, "")
        runtime = info.get("containerRuntimeVersion", "")
        return cls(
            metadata["name"],
            ready.get("status") == "True",
            ready.get("lastHeartbeatTime", ""),
            ready.get("reason", ""),
            ready.get("message", ""),
            spec.get("podCIDR", ""),
            bool(spec.get("unschedulable")),
            LEFT_ANNOTATION in annotations,
            tuple((one["type"], one["status"]) for one in conditions),
            info.get("kubeletVersion", ""),
            tuple(sorted(metadata.get("labels", {}).items())),
            tuple((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints", [])),
            runtime if not runtime.endswith("://Unknown") else "",
            CORDONED_ANNOTATION in annotations,
            tuple(each for each in (reported, marked) if each),
            next((one["address"] for one in status.get("addresses", []) if one["type"] == "InternalIP"), ""),
            metadata.get("uid", ""),
            info.get("bootID", ""),
        )

    @property
    def is_marked_for_removal(self) -> bool:
        """Whether AKS has marked the Node because its Machine is being deleted."""
        return REMOVAL_TAINT in self.taints

    def lives_elsewhere(self, machine_id: str) -> bool:
        """Returns whether the Node lives on another machine than the one with this ID (a hash)."""
        return bool(machine_id) and any(each != machine_id for each in self.machine_ids)


def find(api: ApiClient, name: str) -> ClusterNode | None:
    try:
        return ClusterNode.read(api.get(f"/api/v1/nodes/{quote(name)}"))
    except ApiStatusError as refusal:
        # Before its Node exists, a node's certificate gets 403 instead of 404.
        if refusal.status in {403, 404}:
            return None
        raise


def is_missing(api: ApiClient, name: str) -> bool:
    """Returns whether the cluster responds that the node does not exist."""
    try:
        api.get(f"/api/v1/nodes/{quote(name)}")
    except ApiStatusError as refusal:
        return refusal.status == 404
    return False


def _patch(api: ApiClient, name: str, changes: Mapping[str, Any]) -> None:
    """Changes fields of a node; removes those whose value is None."""
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}", changes, STRATEGIC_MERGE_PATCH)


def sync_labels(api: ApiClient, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> list[str]:
    """Sets the desired labels and removes those set earlier by the agent; returns the changed keys."""
    there = dict(node.labels)
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if there.get(key) != value}
    changes.update({key: None for key in earlier - set(wanted) if key in there})
    if changes:
        _patch(api, node.name, {"metadata": {"labels": changes}})
    return sorted(changes)


def cordon(api: ApiClient, name: str) -> None:
    """Marks the node as unschedulable."""
    _patch(api, name, {"spec": {"unschedulable": True}})


def cordon_for_update(api: ApiClient, name: str) -> None:
    """Cordons the node and annotates in the same request that the agent did it."""
    changes = {"metadata": {"annotations": {CORDONED_ANNOTATION: format_utc()}}, "spec": {"unschedulable": True}}
    _patch(api, name, changes)


def uncordon(api: ApiClient, name: str) -> bool:
    """Uncordons a node that the agent cordoned for an update; returns whether it was cordoned by the agent."""
    node = find(api, name)
    if node is None or not node.cordoned_by_us:
        return False
    changes = {"metadata": {"annotations": {CORDONED_ANNOTATION: None}}, "spec": {"unschedulable": None}}
    _patch(api, name, changes)
    return True


def uncordon_after_rejoin(api: ApiClient, name: str) -> None:
    """Removes the annotations of an earlier unbootstrap or update and uncordons the node."""
    changes = {
        "metadata": {"annotations": {LEFT_ANNOTATION: None, CORDONED_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }
    _patch(api, name, changes)


def annotate_applied_config(api: ApiClient, name: str, version: str, at: str) -> None:
    annotations = {APPLIED_VERSION_ANNOTATION: version, APPLIED_TIME_ANNOTATION: at}
    _patch(api, name, {"metadata": {"annotations": annotations}})


UPGRADE_FAILED = "FlexNodeUpgradeFailed"  # condition of the Node
MAX_CONDITION_LENGTH = 1000


def report_rollback(api: ApiClient, name: str, reason: str, message: str) -> None:
    """Sets a condition on the Node and creates an event: why the last update was rolled back."""
    text = message[:MAX_CONDITION_LENGTH]
    _set_condition(api, name, "True", reason, text)
    now = format_utc()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": "default"},
        # As events of the kubelet, so that `kubectl describe node` finds it.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name},
        "type": "Warning",
        "reason": "UpgradeRolledBack",
        "message": text,
        "source": {"component": "aks-flex-node", "host": name},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    api.request("POST", "/api/v1/namespaces/default/events", event)


def clear_rollback(api: ApiClient, name: str) -> None:
    """Resets the condition of an earlier rollback."""
    node = find(api, name)
    if node and dict(node.conditions).get(UPGRADE_FAILED) == "True":
        _set_condition(api, name, "False", "Updated", "The last update succeeded.")


def _set_condition(api: ApiClient, name: str, status: str, reason: str, message: str) -> None:
    now = format_utc()
    condition = {"type": UPGRADE_FAILED, "status": status, "reason": reason, "message": message}
    condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    body = {"status": {"conditions": [condition]}}
    api.request("PATCH", f"/api/v1/nodes/{quote(name)}/status", body, STRATEGIC_MERGE_PATCH)


def mark_left(api: ApiClient, name: str) -> None:
    _patch(api, name, {"metadata": {"annotations": {LEFT_ANNOTATION: format_utc()}}})


def delete(api: ApiClient, name: str, uid: str) -> bool:
    """Deletes the Node with this UID; returns False if the agent is not allowed to, or if it is another one now."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    try:
        api.request("DELETE", f"/api/v1/nodes/{quote(name)}", options)
    except ApiStatusError as refusal:
        return refusal.status == 404
    return True


def pods(api: ApiClient, name: str) -> list[dict[str, Any]]:
    """Lists all pods on a node."""
    listed = api.get(f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={name}')}")
    return [dict(pod) for pod in listed.get("items", [])]


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod can be evicted: it is neither of a DaemonSet nor static."""
    metadata = pod["metadata"]
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences", [])}
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return not static and "DaemonSet" not in owners


def evict(api: ApiClient, pod: Mapping[str, Any]) -> str:
    """Evicts a pod; returns the server's message if a disruption budget blocks the eviction, else an empty string."""
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
    say: NoteProgress,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Evicts all pods within a time limit; returns the remaining pods with the last reason for each."""
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
        pause = min(2.0, pause * 1.3)  # back off while a budget blocks the eviction
        left = [pod for pod in pods(api, name) if is_evictable(pod)]
    return {name: reasons.get(name, "") for name in map(full_name, left)}


def _evict_or_reason(api: ApiClient, pod: Mapping[str, Any]) -> str:
    """Evicts a pod; returns why it is still there, if known."""
    if pod["metadata"].get("deletionTimestamp"):
        return "still terminating"
    try:
        return evict(api, pod)
    except ApiStatusError as refusal:
        return refusal.message


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


DELETE_CHECK_SECONDS = 0.1


@frozen
class NodeRemoval:
    api: ApiClient
    node: str
    drain_seconds: float = 30.0
    delete_seconds: float = 0.0  # to wait for a resource provider to delete the Node
    machine_id: str = ""  # hash of this machine's ID; empty if unknown

    def run(self, note: NoteProgress) -> list[str]:
        """Drains the node, marks it as left, and deletes it; returns commands for a cluster administrator."""
        manual = [f"kubectl delete node {self.node} --ignore-not-found"]
        try:
            node = find(self.api, self.node)
            if node is None:
                missing = is_missing(self.api, self.node)
                note(
                    f"node {self.node} does not exist in the cluster"
                    if missing
                    else f"this machine is not allowed to read node {self.node}"
                )
                return [] if missing else manual
            if self._is_kept(node, note):
                return []
            cordon(self.api, self.node)
            if remaining := drain_pods(self.api, self.node, self.drain_seconds, note):
                note(f"pods not evicted within {self.drain_seconds:.0f} s: {', '.join(remaining)}")
            if self._is_kept(find(self.api, self.node), note):  # it may have moved during the drain
                return []
            mark_left(self.api, self.node)
            if delete(self.api, self.node, node.uid):
                note(f"node {self.node} deleted from the cluster")
                return []
            if self._wait_until_deleted():
                note(f"the resource provider deleted node {self.node} from the cluster")
                return []
            note(f"this machine is not allowed to delete node {self.node}; it is cordoned and marked as left")
        except (ClusterError, ApiStatusError) as error:
            note(f"the node was not removed from the cluster: {error}")
        return manual

    def _is_kept(self, node: ClusterNode | None, note: NoteProgress) -> bool:
        """Returns whether the Node lives on another machine, which keeps it."""
        if node is None or not node.lives_elsewhere(self.machine_id):
            return False
        note(f"node {self.node} lives on another machine ({node.address or 'unknown address'}) and is kept")
        return True

    def _wait_until_deleted(self) -> bool:
        end = time.monotonic() + self.delete_seconds
        while time.monotonic() < end:
            if is_missing(self.api, self.node):
                return True
            time.sleep(DELETE_CHECK_SECONDS)
        return False
