"""Computes the taints of Nodes. A kubelet sets them only when it registers and may not change them later.

Taints are applied when the desired ones change and when a Node is new. An annotation on the Node records which taints
were applied. Because a node can write it, it counts only for taints that the resource once had.
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
)  # managed by the cluster


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
