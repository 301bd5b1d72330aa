"""The Nodes and bootstrap tokens of a managed cluster, through its API server: read, cordon, drain, taint, delete."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.cluster import BINDINGS, new_bootstrap_token
from aks_flex_node.errors import FlexError
from aks_flex_rp.clusters.client import ApiRefused, KubeClient
from aks_flex_rp.clusters.connections import load_kubeconfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_lab.arm.flex_pools.model import PoolMachine
    from aks_flex_lab.arm.managed_clusters import ManagedCluster
    from aks_flex_rp.clusters.client import KubeObject
    from aks_flex_rp.clusters.connections import DirectConnection

NODES = "/api/v1/nodes"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
CLUSTER_ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
MIRROR_POD = "kubernetes.io/config.mirror"
DELETING_TAINT = {"key": "kubernetes.azure.com/flex-node-deleting", "value": "true", "effect": "NoSchedule"}


@dataclass(frozen=True)
class ObservedNode:
    name: str
    uid: str
    version: str  # without the v
    is_ready: bool


class KubeconfigFile:
    """The connection of a kubeconfig, read again when the API server rejects its credentials."""

    renewable = True

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connection(self) -> DirectConnection:
        return load_kubeconfig(self._path)

    async def managed_cluster(self) -> KubeObject | None:
        return None


class ClusterNodes:
    """The Nodes of one managed cluster."""

    def __init__(self, cluster: ManagedCluster) -> None:
        self._client = KubeClient(KubeconfigFile(Path(cluster.kubeconfig)))

    async def close(self) -> None:
        await self._client.close()

    async def authority(self) -> str:
        """Returns the cluster's CA, in PEM."""
        return (await self._client.direct()).authority

    async def create_bootstrap_token(self, pool: str, seconds: int) -> str:
        for binding in BINDINGS:
            await self._client.apply(f"{CLUSTER_ROLE_BINDINGS}/{binding['metadata']['name']}", binding)
        token, secret = new_bootstrap_token(seconds, f"bootstrap token of flex node pool {pool}")
        await self._client.create(SECRETS, secret)
        return token

    async def find(self, name: str) -> ObservedNode | None:
        found = await self._client.find(f"{NODES}/{name}")
        return _observed(found) if found else None

    async def all(self) -> dict[str, ObservedNode]:
        found, _ = await self._client.list(NODES)
        return {each["metadata"]["name"]: _observed(each) for each in found}

    async def set_schedulable(self, name: str, schedulable: bool) -> None:
        await self._patch(name, {"spec": {"unschedulable": None if schedulable else True}})

    async def drain(self, name: str, seconds: float, poll_seconds: float) -> None:
        """Evicts the pods of a Node, and waits until they are gone.

        DaemonSet pods and static pods stay. Disruption budgets are respected. Raises TimeoutError with the reason
        when pods are left after the time.
        """
        end, refusals = time.monotonic() + seconds, dict[str, str]()
        while True:
            pods = await self._evictable(name)
            if not pods:
                return
            for pod in pods:
                reason = await self._evict(pod) if not pod["metadata"].get("deletionTimestamp") else ""
                refusals[_full_name(pod)] = reason
            if time.monotonic() > end:
                left = [
                    f"{each} ({reason})" if (reason := refusals[each]) else each for each in map(_full_name, pods)
                ]
                raise TimeoutError(", ".join(left))
            await asyncio.sleep(poll_seconds)

    async def delete(self, name: str, uid: str) -> bool:
        return await self._client.delete(f"{NODES}/{name}", {"uid": uid})

    async def mark_deleting(self, name: str) -> None:
        """Taints a Node whose Machine was deleted, so that its agent resets the host."""
        await self._change_taints(name, remove=(), add=(DELETING_TAINT,))

    async def reconcile(self, machine: PoolMachine) -> bool:
        """Writes a Machine's labels and taints to its Node, and removes earlier ones. Returns whether it exists."""
        labels = machine.settings.node_labels
        gone = {key: None for key in machine.applied_labels if key not in labels}
        taints = [parse_taint(each) for each in machine.settings.node_taints]
        removed = [parse_taint(each) for each in machine.applied_taints if each not in machine.settings.node_taints]
        try:
            await self._patch(machine.node_name, {"metadata": {"labels": {**gone, **labels}}})
            await self._change_taints(machine.node_name, removed, taints)
        except ApiRefused as refusal:
            if refusal.status != 404:
                raise
            return False
        return True

    async def _evictable(self, name: str) -> list[KubeObject]:
        pods, _ = await self._client.list("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        return [pod for pod in pods if not _stays(pod)]

    async def _evict(self, pod: KubeObject) -> str:
        """Requests an eviction. Returns why it is refused, or an empty string."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": metadata["name"]}}
        try:
            await self._client.create(path, {**body, "deleteOptions": {"preconditions": {"uid": metadata["uid"]}}})
        except ApiRefused as refusal:
            if refusal.status == 429:  # a disruption budget
                return refusal.message
            if refusal.status not in {404, 409}:
                raise
        return ""

    async def _change_taints(self, name: str, remove: Iterable[KubeObject], add: Iterable[KubeObject]) -> None:
        keys = {(each["key"], each["effect"]) for each in (*remove, *add)}
        while True:
            node = await self._client.get(f"{NODES}/{name}")
            before = node["spec"].get("taints") or []
            after = [*(each for each in before if (each["key"], each["effect"]) not in keys), *add]
            if _sorted(before) == _sorted(after):
                return
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                await self._patch(name, {"metadata": version, "spec": {"taints": after}})
            except ApiRefused as refusal:
                if refusal.status != 409:  # changed in between
                    raise
            else:
                return

    async def _patch(self, name: str, change: KubeObject) -> None:
        await self._client.merge(f"{NODES}/{name}", change)


CLUSTER_ERRORS = (ApiRefused, FlexError)  # the API server refuses a request, or is unreachable


def parse_taint(text: str) -> KubeObject:
    name, _, effect = text.rpartition(":")
    key, equals, value = name.partition("=")
    return {"key": key, **({"value": value} if equals and value else {}), "effect": effect}


def _observed(node: KubeObject) -> ObservedNode:
    status = node.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    version = str((status.get("nodeInfo") or {}).get("kubeletVersion") or "").removeprefix("v")
    return ObservedNode(node["metadata"]["name"], node["metadata"]["uid"], version, ready)


def _stays(pod: KubeObject) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    is_daemon = any(each.get("controller") and each["kind"] == "DaemonSet" for each in owners)
    is_static = MIRROR_POD in (pod["metadata"].get("annotations") or {})
    return is_daemon or is_static or (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _full_name(pod: KubeObject) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _sorted(taints: Iterable[KubeObject]) -> list[list[tuple[str, Any]]]:
    return sorted(sorted(each.items()) for each in taints)
