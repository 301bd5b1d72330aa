"""Computes the taints of Nodes: a kubelet sets them only when it registers and may not change them later.

Taints are applied when the desired ones change and when a Node is new. An annotation on the Node records which taints
were applied; since a node can write it, it counts only for taints that the resource once had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_rp.clusters.client import KubeObject
    from aks_flex_rp.join_state import TaintKey

TAINTS_ANNOTATION = "flex.aks.azure.com/taints"  # on a Node
CLUSTER_TAINT_PREFIXES = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
)  # are put there and taken by the cluster


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
    desired = taints.by_key()
    brought, mark = _brought(node), taints_annotation(desired.values())
    if applied_taints(node) == mark:
        return None
    # Without a mark it is a new Node, and may have registered with what was wanted earlier.
    removable = taints.former if brought is None else taints.former & brought
    before: list[KubeObject] = node.get("spec", {}).get("taints") or []
    after = [one for one in before if _stays(one, desired, removable)]
    there = {taint_key(one) for one in after}
    after += [one for where, one in desired.items() if where not in there]
    if brought is None and not desired and after == before:
        return None
    version = node["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version, "annotations": {TAINTS_ANNOTATION: mark}},
        "spec": {"taints": after},
    }


def _stays(taint: KubeObject, desired: dict[TaintKey, KubeObject], removable: frozenset[TaintKey]) -> bool:
    """One that is wanted with another value goes, and comes back with it."""
    if taint["key"].startswith(CLUSTER_TAINT_PREFIXES):
        return True
    new = desired.get(taint_key(taint))
    return taint_key(taint) not in removable if new is None else new.get("value", "") == taint.get("value", "")


def taints_annotation(taints: Iterable[KubeObject]) -> str:
    return json.dumps(sorted(taints, key=taint_key), separators=(",", ":"), sort_keys=True)


def applied_taints(node: KubeObject) -> str | None:
    note: str | None = (node["metadata"].get("annotations") or {}).get(TAINTS_ANNOTATION)
    return note


def _brought(node: KubeObject) -> frozenset[TaintKey] | None:
    """None when nothing stands there, or nothing that we have written: a machine may write on its own Node."""
    try:
        return frozenset(taint_key(one) for one in json.loads(applied_taints(node) or ""))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
