"""What a node's identity was given in its cluster, as it is noted beside the join state. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.access import Access
from aks_flex_node.rp.resource.models import KubernetesAuth

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.access import Way
    from aks_flex_node.rp.store.store import Document, Node

ACCESS = "access"


def way_of(node: Node) -> Way | None:
    """How its identity lets it join; None for one that joins by a token."""
    return KubernetesAuth.model_validate(node.properties.get("kubernetesAuth", {})).by_identity


def access_of(node: Node) -> Access | None:
    return noted(node.join)


def noted(join: Document) -> Access | None:
    return Access(**join[ACCESS]) if ACCESS in join else None


def owed(node: Node) -> str | None:
    """Who was given what the node needs: nobody yet when empty; None for a node that needs nothing."""
    way, access = way_of(node), access_of(node)
    if way is None:
        return None
    return access.identity if access and access.way == way else ""


def takes_leave(node: Node) -> bool:
    """Whether a node that is deleted needs what it was given once more: to drain itself, and to say that it left."""
    access = access_of(node)
    return access is not None and access.way == "exec" and node.join.get("state") == "Joined"


def next_way(node: Node, identity: str, *, introduction: bool) -> Way | None:
    """What to give a node that calls. It gets more at once; less only when it has what it needs to do with less."""
    way, access = way_of(node), access_of(node)
    if way != "certificate" or introduction or access is None or access.identity != identity:
        return way
    return way if has_applied(node) else access.way


def has_applied(node: Node) -> bool:
    """Whether the machine is as it was last wanted, by its own word."""
    return node.status.get("appliedConfigVersion") == str(node.version)


def is_over(node: Node) -> bool:
    """Whether it was given something that it does not need any more: it joins by a token now."""
    return way_of(node) is None and access_of(node) is not None and has_applied(node)


def with_access(node: Node, before: Node | None) -> Node:
    """Whoever still is who it was keeps it, also to join in another way: until it has done so, it works on."""
    access = access_of(before) if before else None
    if before is None or access is None or before.identity != node.identity:
        return node
    return replace(node, join={**node.join, ACCESS: access.to_document()})


def introduced(join: Document, access: Access) -> Document:
    """How far a node has come that says who it is, and has been let in as that."""
    after = {**join, ACCESS: access.to_document()}
    if join.get("state") == "Joined":
        return after
    if access.way == "certificate":  # it still has to ask for that, and then the cluster tells
        return {**after, "state": "ConfigFetched"} if join.get("state") in {"Created", None} else after
    kept = {name: value for name, value in after.items() if name not in {"failure", "urlExpires"}}
    return {**kept, "state": "BootstrapAttempted"}


def attempted(join: Document, identity: str, csr: str) -> Document:
    """It asks for a certificate: for its first, or for another because it has lost that."""
    access = noted(join)
    if access is None or access.identity != identity or join.get("csr") == csr:
        return join
    kept = {name: value for name, value in join.items() if name not in {"failure", "urlExpires", "issued"}}
    return {**kept, "state": "BootstrapAttempted", "csr": csr}


def certified(join: Document, csr: str) -> Document:
    return {**join, "issued": csr} if join.get("csr") == csr else join
