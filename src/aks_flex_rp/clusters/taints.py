"""Reconciles the taints of Nodes: a kubelet sets them only when it registers and may not change them later.

Taints are applied when the desired ones change and when a Node is new. An annotation on the Node records which taints
were applied; since a node can write it, it counts only for taints that the resource once had.
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

TAINTS_ANNOTATION = "flex.aks.azure.com/taints"  # on a Node
CLUSTER_TAINT_PREFIXES = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
)  # are put there and taken by the cluster
ATTEMPTS = 5  # at a Node that others are writing, too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DesiredTaints:
    """What a node should have, and what it once should have had."""

    desired: tuple[KubeObject, ...] = ()
    former: frozenset[TaintKey] = frozenset()

    def by_key(self) -> dict[TaintKey, KubeObject]:
        """The wanted ones that are ours to bring."""
        return {taint_key(one): one for one in self.desired if not one["key"].startswith(CLUSTER_TAINT_PREFIXES)}


def taint_key(taint: KubeObject) -> TaintKey:
    return taint["key"], taint["effect"]


def taint_patch(node: KubeObject, taints: DesiredTaints) -> KubeObject | None:
    """What brings a Node's taints in line; None when there is nothing to do."""
    wanted = taints.by_key()
    brought, mark = _brought(node), _mark(wanted.values())
    if _note(node) == mark:
        return None
    # Without a mark it is a new Node, and may have registered with what was wanted earlier.
    removable = taints.former if brought is None else taints.former & brought
    before: list[KubeObject] = node.get("spec", {}).get("taints") or []
    after = [one for one in before if _stays(one, wanted, removable)]
    there = {taint_key(one) for one in after}
    after += [one for where, one in wanted.items() if where not in there]
    if brought is None and not wanted and after == before:
        return None
    version = node["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version, "annotations": {TAINTS_ANNOTATION: mark}},
        "spec": {"taints": after},
    }


def _stays(taint: KubeObject, wanted: dict[TaintKey, KubeObject], removable: frozenset[TaintKey]) -> bool:
    """One that is wanted with another value goes, and comes back with it."""
    if taint["key"].startswith(CLUSTER_TAINT_PREFIXES):
        return True
    new = wanted.get(taint_key(taint))
    return taint_key(taint) not in removable if new is None else new.get("value", "") == taint.get("value", "")


def _mark(taints: Iterable[KubeObject]) -> str:
    return json.dumps(sorted(taints, key=taint_key), separators=(",", ":"), sort_keys=True)


def _note(node: KubeObject) -> str | None:
    note: str | None = (node["metadata"].get("annotations") or {}).get(TAINTS_ANNOTATION)
    return note


def _brought(node: KubeObject) -> frozenset[TaintKey] | None:
    """None when nothing stands there, or nothing that we have written: a machine may write on its own Node."""
    try:
        return frozenset(taint_key(one) for one in json.loads(_note(node) or ""))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class TaintController:
    """Of one cluster. It is told of Nodes by the watch, and of what is wanted by the store."""

    def __init__(self, cluster: str, client: KubeClient, listener: ClusterEventHandler) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._seen: dict[str, tuple[str, str | None]] = {}  # of every flex node, which Node it is and its mark
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def saw(self, node: KubeObject) -> None:
        name, seen = node["metadata"]["name"], (node["metadata"]["uid"], _note(node))
        if is_flex_node(node) and self._seen.get(name) != seen:
            self._seen[name] = seen
            self.mark_due(name)

    def gone(self, name: str) -> None:
        self._seen.pop(name, None)

    def mark_due(self, name: str) -> None:
        """What is wanted of this node may have changed; with no name, of any."""
        self._due |= dict.fromkeys([name] if name else self._seen)
        self._wake.set()

    async def run(self) -> None:
        """Bring those that are due, as soon as there are any, until something fails."""
        while True:
            await self._wake.wait()
            await self.reconcile_due()

    async def reconcile_due(self) -> None:
        """What fails is due again."""
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
            return  # when it comes into the cluster, the watch tells
        taints = await self._listener.taints(self._cluster, name)
        if taints is None or not self._may_differ(name, taints):
            return
        for _ in range(ATTEMPTS):
            node = await self._client.find(f"{NODES}/{name}")
            change = taint_patch(node, taints) if node and is_flex_node(node) else None
            if node is None or change is None:
                return
            try:
                self.saw(await self._client.merge(f"{NODES}/{name}", change))
            except ApiRefused as refusal:
                if refusal.status == 409:
                    continue
                if refusal.status in {403, 422}:  # for a person to put right; trying again does not help
                    log.warning("%s: taints of %s cannot be changed: %s", self._cluster, name, refusal.message)
                    return
                raise
            log.info("%s: %s has the taints that are wanted.", self._cluster, name)
            return
        self.mark_due(name)

    def _may_differ(self, name: str, taints: DesiredTaints) -> bool:
        """By what was last seen of the Node: most nodes have no taints, and need not be asked for."""
        mark = self._seen[name][1]
        return bool(taints.desired or taints.former) if mark is None else mark != _mark(taints.by_key().values())
