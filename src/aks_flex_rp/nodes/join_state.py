"""The stored join state of a node: pure functions that read it and compute the next one.

Besides the state itself it holds the granted cluster access of the node's identity and the taints it had before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.access import ClusterAccess
from aks_flex_rp.clusters.taints import DesiredTaints, taint_key
from aks_flex_rp.resource.models import KubernetesAuth

if TYPE_CHECKING:
    from aks_flex_rp.clusters.access import Way
    from aks_flex_rp.store.interface import Document, Node


ACCESS = "access"


def identity_method(node: Node) -> Way | None:
    """How its identity lets it join; None for one that joins by a token."""
    return KubernetesAuth.model_validate(node.properties.get("kubernetesAuth", {})).by_identity


def granted_access(node: Node) -> ClusterAccess | None:
    return stored_access(node.join)


def stored_access(join: Document) -> ClusterAccess | None:
    return ClusterAccess(**join[ACCESS]) if ACCESS in join else None


def granted_identity(node: Node) -> str | None:
    """Who was given what the node needs: nobody yet when empty; None for a node that needs nothing."""
    way, access = identity_method(node), granted_access(node)
    if way is None:
        return None
    return access.identity if access and access.way == way else ""


def needs_access_to_leave(node: Node) -> bool:
    """Whether a node that is deleted needs what it was given once more: to drain itself, and to say that it left."""
    access = granted_access(node)
    return access is not None and access.way == "exec" and node.join.get("state") == "Joined"


def next_method(node: Node, identity: str, *, introduction: bool) -> Way | None:
    """What to give a node that calls. It gets more at once; less only when it has what it needs to do with less."""
    way, access = identity_method(node), granted_access(node)
    if way != "certificate" or introduction or access is None or access.identity != identity:
        return way
    return way if has_applied_config(node) else access.way


def has_applied_config(node: Node) -> bool:
    """Whether the machine is as it was last wanted, by its own word."""
    return node.status.get("appliedConfigVersion") == str(node.version)


def is_access_obsolete(node: Node) -> bool:
    """Whether it was given something that it does not need any more: it joins by a token now."""
    return identity_method(node) is None and granted_access(node) is not None and has_applied_config(node)


def keep_access(node: Node, before: Node | None) -> Node:
    """Whoever still is who it was keeps it, also to join in another way: until it has done so, it works on."""
    access = granted_access(before) if before else None
    if before is None or access is None or before.identity != node.identity:
        return node
    return replace(node, join={**node.join, ACCESS: access.to_document()})


def after_introduction(join: Document, access: ClusterAccess) -> Document:
    """How far a node has come that says who it is, and has been let in as that."""
    after = {**join, ACCESS: access.to_document()}
    if join.get("state") == "Joined":
        return after
    if access.way == "certificate":  # it still has to ask for that, and then the cluster tells
        return {**after, "state": "ConfigFetched"} if join.get("state") in {"Created", None} else after
    kept = {name: value for name, value in after.items() if name not in {"failure", "urlExpires"}}
    return {**kept, "state": "BootstrapAttempted"}


def after_csr(join: Document, identity: str, csr: str) -> Document:
    """It asks for a certificate: for its first, or for another because it has lost that."""
    access = stored_access(join)
    if access is None or access.identity != identity or join.get("csr") == csr:
        return join
    kept = {name: value for name, value in join.items() if name not in {"failure", "urlExpires", "issued"}}
    return {**kept, "state": "BootstrapAttempted", "csr": csr}


def after_certificate(join: Document, csr: str) -> Document:
    return {**join, "issued": csr} if join.get("csr") == csr else join


FORMER_TAINTS = "formerTaints"  # beside the join state
MAX_FORMER_TAINTS = 100  # that are remembered of a node: the latest


def desired_taints(node: Node) -> DesiredTaints:
    former = frozenset((key, effect) for key, effect in node.join.get(FORMER_TAINTS, ()))
    return DesiredTaints(tuple(node.config["node"]["taints"]), former)


def record_former_taints(node: Node, before: Node | None) -> Node:
    """In the same write as what replaces them: so that nothing has to be remembered of it later."""
    if before is None:
        return node
    now = {taint_key(each) for each in node.config["node"]["taints"]}
    earlier = [taint_key(each) for each in before.config["node"]["taints"]]
    known = dict.fromkeys([*((key, effect) for key, effect in before.join.get(FORMER_TAINTS, ())), *earlier])
    former = [[key, effect] for key, effect in known if (key, effect) not in now]
    return replace(node, join={**node.join, FORMER_TAINTS: former[-MAX_FORMER_TAINTS:]}) if former else node
