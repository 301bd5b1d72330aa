"""Access of a node's Azure identity to the cluster: one ClusterRoleBinding per node, removed with the node.

With `exec` the kubelet always authenticates with the identity. Its role and an admission policy limit what it can
write to its own Node, see `exec_nodes`. With `certificate` the identity may only request the node's certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.clusters.exec_nodes import BINDING_PREFIX, EXEC_LABEL, RBAC
from aks_flex_rp.clusters.prerequisites import BINDINGS
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, ClusterAccess

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject

IDENTITY_LABEL = "flex.aks.azure.com/identity"  # label on all bindings of nodes, with the identity as its value


def access_binding(identity: str, role: str, node: str) -> KubeObject:
    """Returns the ClusterRoleBinding that grants a node's identity its role."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {
            "name": f"{BINDING_PREFIX}{node}",
            "labels": {
                IDENTITY_LABEL: identity,
                "app.kubernetes.io/managed-by": "aks-flex-rp",
                **({EXEC_LABEL: "exec"} if role == KUBELET_ROLE else {}),
            },
        },
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": identity}],
    }


def read_binding(binding: KubeObject) -> ClusterAccess | None:
    """Returns the access that a binding grants, or None if the binding differs from what the service creates."""
    identity = binding["metadata"].get("labels", {}).get(IDENTITY_LABEL, "")
    for method, role in ACCESS_ROLES.items():
        expected = access_binding(identity, role, binding_node(binding))
        labelled = EXEC_LABEL in binding["metadata"].get("labels", {}) or role != KUBELET_ROLE
        if labelled and all(binding.get(part) == expected[part] for part in ("roleRef", "subjects")):
            return ClusterAccess(identity, method)
    return None


def binding_node(binding: KubeObject) -> str:
    """Returns the node of a binding by its name, or an empty string if it is not a node's binding."""
    name = str(binding["metadata"]["name"])
    return name.removeprefix(BINDING_PREFIX) if name.startswith(BINDING_PREFIX) else ""


async def grant_access(client: KubeClient, node: str, access: ClusterAccess) -> None:
    """Creates or corrects the binding. Does nothing for an access method of another release."""
    if access.role is None:
        return
    binding = await client.find(_path(node))
    if binding and binding["roleRef"]["name"] != access.role:  # roleRef is immutable
        await client.delete(_path(node), {"uid": binding["metadata"]["uid"]})
    await client.apply(_path(node), access_binding(access.identity, access.role, node))


async def withdraw_access(client: KubeClient, node: str) -> bool:
    """Deletes the binding. Returns whether it existed."""
    return await client.delete(_path(node))


async def identity_nodes(client: KubeClient, identity: str) -> list[str]:
    """Returns the nodes whose bindings name this identity."""
    bindings, _ = await client.list(BINDINGS, labelSelector=f"{IDENTITY_LABEL}={identity}")
    return sorted(node for one in bindings if (node := binding_node(one)))


def _path(node: str) -> str:
    return f"{BINDINGS}/{BINDING_PREFIX}{node}"
