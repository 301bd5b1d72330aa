"""Access of a node's Azure identity to the cluster: one ClusterRoleBinding per node, removed with the node.

With `exec` the kubelet always authenticates as that identity and has the role system:node. With `certificate` the
identity may only request the node's certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.clusters.prerequisites import BINDINGS, RBAC
from aks_flex_rp.join_state import ACCESS_ROLES, ClusterAccess

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject

BINDING_PREFIX = "aks-flex-node:node:"  # a node's name has no colon: so no node's binding is one of the cluster's own
IDENTITY_LABEL = (
    "flex.aks.azure.com/identity"  # a label: all bindings of nodes have it, and those of one identity are found
)


def access_binding(identity: str, role: str, node: str) -> KubeObject:
    """The ClusterRoleBinding that grants the identity of a node its role."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {
            "name": f"{BINDING_PREFIX}{node}",
            "labels": {IDENTITY_LABEL: identity, "app.kubernetes.io/managed-by": "aks-flex-rp"},
        },
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": identity}],
    }


def read_binding(binding: KubeObject) -> ClusterAccess | None:
    """What a binding gives; None when it is not just as we make them."""
    identity = binding["metadata"].get("labels", {}).get(IDENTITY_LABEL, "")
    for method, role in ACCESS_ROLES.items():
        made = access_binding(identity, role, binding_node(binding))
        if all(binding.get(part) == made[part] for part in ("roleRef", "subjects")):
            return ClusterAccess(identity, method)
    return None


def binding_node(binding: KubeObject) -> str:
    """Empty when it is no node's, whatever its labels say."""
    name = str(binding["metadata"]["name"])
    return name.removeprefix(BINDING_PREFIX) if name.startswith(BINDING_PREFIX) else ""


async def grant_access(client: KubeClient, node: str, access: ClusterAccess) -> None:
    """Makes it so. What is there already stays as it is; access by a method of another release is left to that."""
    if access.role is None:
        return
    there = await client.find(_path(node))
    if there and there["roleRef"]["name"] != access.role:  # which cannot be changed
        await client.delete(_path(node), {"uid": there["metadata"]["uid"]})
    await client.apply(_path(node), access_binding(access.identity, access.role, node))


async def withdraw_access(client: KubeClient, node: str) -> bool:
    """Whether there was anything."""
    return await client.delete(_path(node))


async def identity_nodes(client: KubeClient, identity: str) -> list[str]:
    """Whom an identity is, as far as the cluster knows."""
    bindings, _ = await client.list(BINDINGS, labelSelector=f"{IDENTITY_LABEL}={identity}")
    return sorted(node for one in bindings if (node := binding_node(one)))


def _path(node: str) -> str:
    return f"{BINDINGS}/{BINDING_PREFIX}{node}"
