"""What the join state of a node means for its access to the cluster and for its taints: pure functions of nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.taints import DesiredTaints, taint_key
from aks_flex_rp.join_state import AccessMethod
from aks_flex_rp.resource.models import KubernetesAuth

if TYPE_CHECKING:
    from aks_flex_rp.store.model import Node

MAX_FORMER_TAINTS = 100  # that are remembered of a node: the latest


def identity_method(node: Node) -> AccessMethod | None:
    """How its identity lets it join; None for one that joins by a token."""
    method = KubernetesAuth.model_validate(node.properties.get("kubernetesAuth", {})).by_identity
    return AccessMethod(method) if method else None


def granted_identity(node: Node) -> str | None:
    """Who was given what the node needs: nobody yet when empty; None for a node that needs nothing."""
    method, access = identity_method(node), node.join.access
    if method is None:
        return None
    return access.identity if access and access.method == method else ""


def needs_access_to_leave(node: Node) -> bool:
    """Whether a node that is deleted needs what it was given once more: to drain itself, and to say that it left."""
    access = node.join.access
    return access is not None and access.method is AccessMethod.EXEC and node.join.is_joined


def next_method(node: Node, identity: str, *, introduction: bool) -> AccessMethod | None:
    """What to give a node that calls. It gets more at once; less only when it has what it needs to do with less."""
    method, access = identity_method(node), node.join.access
    if method is not AccessMethod.CERTIFICATE or introduction or access is None or access.identity != identity:
        return method
    return method if has_applied_config(node) else access.method


def has_applied_config(node: Node) -> bool:
    """Whether the machine is as it was last wanted, by its own word."""
    return node.status.get("appliedConfigVersion") == str(node.version)


def is_access_obsolete(node: Node) -> bool:
    """Whether it was given something that it does not need any more: it joins by a token now."""
    return identity_method(node) is None and node.join.access is not None and has_applied_config(node)


def keep_access(node: Node, before: Node | None) -> Node:
    """Whoever still is who it was keeps it, also to join in another way: until it has done so, it works on."""
    if before is None or before.join.access is None or before.identity != node.identity:
        return node
    return replace(node, join=node.join.with_access(before.join.access))


def desired_taints(node: Node) -> DesiredTaints:
    return DesiredTaints(tuple(node.config["node"]["taints"]), frozenset(node.join.former_taints))


def record_former_taints(node: Node, before: Node | None) -> Node:
    """In the same write as what replaces them: so that nothing has to be remembered of it later."""
    if before is None:
        return node
    now = {taint_key(each) for each in node.config["node"]["taints"]}
    earlier = [taint_key(each) for each in before.config["node"]["taints"]]
    known = dict.fromkeys([*before.join.former_taints, *earlier])
    former = [each for each in known if each not in now]
    return replace(node, join=node.join.with_former_taints(former[-MAX_FORMER_TAINTS:])) if former else node
