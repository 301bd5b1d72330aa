"""Derives cluster access and taints of a node from its join state and properties. Pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.taints import DesiredTaints, taint_key
from aks_flex_rp.join_state import AccessMethod
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.resource.validation import DesiredNode

if TYPE_CHECKING:
    from aks_flex_rp.store.model import Node

MAX_FORMER_TAINTS = 100  # per node; the latest are kept


def identity_method(node: Node) -> AccessMethod | None:
    """Returns how the node joins with its identity, or None if it joins with a token."""
    method = Properties(node.effective).by_identity
    return AccessMethod(method) if method else None


def stored_desired(node: Node, allow_downgrade: bool = False) -> DesiredNode:
    """Returns the desired state that a node has, for a write that does not change it."""
    own = node.properties if node.pool else None
    return DesiredNode(Properties(node.effective), allow_downgrade, node.pool, own)


def granted_identity(node: Node) -> str | None:
    """Returns the identity with the required access: empty if not granted yet, None if the node needs no access."""
    method, access = identity_method(node), node.join.access
    if method is None:
        return None
    return access.identity if access and access.method == method else ""


def needs_access_to_leave(node: Node) -> bool:
    """Returns whether a deleted node still needs its access, to drain itself and to report that it left."""
    access = node.join.access
    return access is not None and access.method is AccessMethod.EXEC and node.join.is_joined


def next_method(node: Node, identity: str, *, joining: bool) -> AccessMethod | None:
    """Returns the access method for a calling node.

    Access is reduced only after the node has applied its configuration.
    """
    method, access = identity_method(node), node.join.access
    if method is not AccessMethod.CERTIFICATE or joining or access is None or access.identity != identity:
        return method
    return method if has_applied_config(node) else access.method


def has_applied_config(node: Node) -> bool:
    """Returns whether the node has reported its current configuration as applied."""
    return node.status.get("appliedConfigVersion") == str(node.version)


def is_access_obsolete(node: Node) -> bool:
    """Returns whether the node has access that it no longer needs, because it joins with a token now."""
    return identity_method(node) is None and node.join.access is not None and has_applied_config(node)


def keep_access(node: Node, before: Node | None) -> Node:
    """Keeps the access of a node whose identity is unchanged, also if its join method changed:

    it is needed until then.
    """
    if before is None or before.join.access is None or before.identity != node.identity:
        return node
    return replace(node, join=node.join.with_access(before.join.access))


def record_delivered(node: Node, before: Node | None) -> Node:
    """Keeps track of the configuration that the machine of a joined node has, when this write changes it."""
    if before is None or not before.join.is_joined:
        return node
    known = before.join.delivered or before.version
    same = known == before.version and node.config == before.config
    delivered = node.version if same else known
    return node if node.join.delivered == delivered else replace(node, join=node.join.with_delivered(delivered))


def desired_taints(node: Node) -> DesiredTaints:
    return DesiredTaints(tuple(node.config["node"]["taints"]), frozenset(node.join.former_taints))


def record_former_taints(node: Node, before: Node | None) -> Node:
    """Records the taints that this write replaces, in the same write."""
    if before is None:
        return node
    now = {taint_key(each) for each in node.config["node"]["taints"]}
    earlier = [taint_key(each) for each in before.config["node"]["taints"]]
    known = dict.fromkeys([*before.join.former_taints, *earlier])
    former = [each for each in known if each not in now]
    return replace(node, join=node.join.with_former_taints(former[-MAX_FORMER_TAINTS:])) if former else node
