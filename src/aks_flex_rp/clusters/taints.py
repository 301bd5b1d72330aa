"""Reconciles the taints of Nodes with their resources. A kubelet sets them only when it registers and may not change
them later.

Taints are applied when the desired ones change and when a Node is new. An annotation on the Node records which taints
were applied. Because a node can write it, it counts only for taints that the resource once had.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import NODES, is_flex_node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.join_state import TaintKey


ATTEMPTS = 5  # on conflicts with other writers of the Node
TAINTS_ANNOTATION = "flex.aks.azure.com/taints"  # on a Node
CLUSTER_TAINT_PREFIXES = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
)  # managed by the cluster

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DesiredTaints:
    """The desired taints of a node, and those of earlier configurations."""

    desired: tuple[KubeObject, ...] = ()
    former: frozenset[TaintKey] = frozenset()

    def by_key(self) -> dict[TaintKey, KubeObject]:
        """Returns the desired taints that the service manages."""
        return {taint_key(one): one for one in self.desired if not one["key"].startswith(CLUSTER_TAINT_PREFIXES)}


def taint_key(taint: KubeObject) -> TaintKey:
    return taint["key"], taint["effect"]


def taint_patch(node: KubeObject, taints: DesiredTaints) -> KubeObject | None:
    """Returns the patch that makes the Node's taints match, or None if they match."""
    desired = taints.by_key()
    applied, mark = _applied_keys(node), taints_annotation(desired.values())
    if applied_taints(node) == mark:
        return None
    # A Node without the annotation is new, and may have registered with an earlier configuration.
    removable = taints.former if applied is None else taints.former & applied
    before: list[KubeObject] = node.get("spec", {}).get("taints") or []
    after = [one for one in before if _is_kept(one, desired, removable)]
    there = {taint_key(one) for one in after}
    after += [one for where, one in desired.items() if where not in there]
    if applied is None and not desired and after == before:
        return None
    version = node["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version, "annotations": {TAINTS_ANNOTATION: mark}},
        "spec": {"taints": after},
    }


def _is_kept(taint: KubeObject, desired: dict[TaintKey, KubeObject], removable: frozenset[TaintKey]) -> bool:
    """Returns whether a taint is kept. A desired taint with another value is replaced."""
    if taint["key"].startswith(CLUSTER_TAINT_PREFIXES):
        return True
    new = desired.get(taint_key(taint))
    return taint_key(taint) not in removable if new is None else new.get("value", "") == taint.get("value", "")


def taints_annotation(taints: Iterable[KubeObject]) -> str:
    return json.dumps(sorted(taints, key=taint_key), separators=(",", ":"), sort_keys=True)


def applied_taints(node: KubeObject) -> str | None:
    annotation: str | None = (node["metadata"].get("annotations") or {}).get(TAINTS_ANNOTATION)
    return annotation


def _applied_keys(node: KubeObject) -> frozenset[TaintKey] | None:
    """Returns the applied taints, or None if the annotation is missing or invalid:

    a machine can write to its Node.
    """
    try:
        return frozenset(taint_key(one) for one in json.loads(applied_taints(node) or ""))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class TaintController:
    """Reconciles the taints of one cluster's Nodes. Informed by the watch on Nodes and by changes of resources."""

    def __init__(self, cluster: str, client: KubeClient, handler: ClusterEventHandler) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._seen: dict[str, tuple[str, str | None]] = {}  # UID and taints annotation of every flex node
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def observe(self, node: KubeObject) -> None:
        name, seen = node["metadata"]["name"], (node["metadata"]["uid"], applied_taints(node))
        if is_flex_node(node) and self._seen.get(name) != seen:
            self._seen[name] = seen
            self.mark_due(name)

    def gone(self, name: str) -> None:
        self._seen.pop(name, None)

    def mark_due(self, name: str | None) -> None:
        """Marks a node for reconciliation, because its desired taints may have changed. None means all nodes."""
        self._due |= dict.fromkeys(self._seen if name is None else [name])
        self._wake.set()

    async def run(self) -> None:
        """Reconciles due nodes as they arrive, until an error."""
        while True:
            await self._wake.wait()
            await self.reconcile_due()

    async def reconcile_due(self) -> None:
        """Reconciles all due nodes. A node that fails stays due."""
        self._wake.clear()
        due, self._due = self._due, {}
        await handle_each(due, self._try)

    async def _try(self, name: str) -> None:
        try:
            await self._reconcile(name)
        except Exception:
            self.mark_due(name)
            raise

    async def _reconcile(self, name: str) -> None:
        if name not in self._seen:
            return  # the watch reports it when its Node is created
        taints = await self._handler.desired_taints(self._cluster, name)
        if taints is None or not self._may_differ(name, taints):
            return
        for _ in range(ATTEMPTS):
            node = await self._client.find(f"{NODES}/{name}")
            change = taint_patch(node, taints) if node and is_flex_node(node) else None
            if node is None or change is None:
                return
            try:
                self.observe(await self._client.merge(f"{NODES}/{name}", change))
            except ApiRefused as refusal:
                if refusal.status == 409:
                    continue
                if refusal.status in {403, 422}:  # needs an administrator, so a retry does not help
                    log.warning("%s: cannot change the taints of node %s: %s", self._cluster, name, refusal.message)
                    return
                raise
            log.info("%s: applied the taints of node %s.", self._cluster, name)
            return
        self.mark_due(name)

    def _may_differ(self, name: str, taints: DesiredTaints) -> bool:
        """Returns whether the taints may differ, from the last seen annotation.

        Most nodes have none and need no read.
        """
        annotation = self._seen[name][1]
        return (
            bool(taints.desired or taints.former)
            if annotation is None
            else annotation != taints_annotation(taints.by_key().values())
        )
