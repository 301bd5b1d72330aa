"""What the Azure identity of a node may do in the cluster: one ClusterRoleBinding a node, which goes with the node.

With `exec` the kubelet is that identity for good, and has a node's role. With `certificate` it may only ask for the
certificate with which it goes on, and the cluster's own rules for nodes hold from there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from aks_flex_node.rp.clusters.objects import BINDINGS, RBAC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.rp.clusters.clients import Client, Object

    Way = Literal["exec", "certificate"]

ROLES: Mapping[Way, str] = {"exec": "system:node", "certificate": "system:node-bootstrapper"}
PREFIX = "aks-flex-node:node:"  # a node's name has no colon: so no node's binding is one of the cluster's own
IDENTITY = (
    "flex.aks.azure.com/identity"  # a label: all bindings of nodes have it, and those of one identity are found
)


@dataclass(frozen=True)
class Access:
    """Who a node is to the cluster, and how it joins."""

    identity: str  # its object id, which is the user's name in a cluster that accepts Entra ID
    way: Way

    @property
    def role(self) -> str:
        return ROLES[self.way]

    def to_document(self) -> dict[str, str]:
        return asdict(self)

    def binding(self, node: str) -> Object:
        return {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {
                "name": f"{PREFIX}{node}",
                "labels": {IDENTITY: self.identity, "app.kubernetes.io/managed-by": "aks-flex-rp"},
            },
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": self.role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": self.identity}],
        }


def read(binding: Object) -> Access | None:
    """What a binding gives; None when it is not just as we make them."""
    identity = binding["metadata"].get("labels", {}).get(IDENTITY, "")
    for way in ROLES:
        access = Access(identity, way)
        made = access.binding(node_of(binding))
        if all(binding.get(part) == made[part] for part in ("roleRef", "subjects")):
            return access
    return None


def node_of(binding: Object) -> str:
    """Empty when it is no node's, whatever its labels say."""
    name = str(binding["metadata"]["name"])
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""


async def grant(client: Client, node: str, access: Access) -> None:
    """Make it so. What is there already stays as it is."""
    there = await client.find(_path(node))
    if there and there["roleRef"]["name"] != access.role:  # which cannot be changed
        await client.delete(_path(node), {"uid": there["metadata"]["uid"]})
    await client.apply(_path(node), access.binding(node))


async def withdraw(client: Client, node: str) -> bool:
    """Whether there was anything."""
    return await client.delete(_path(node))


async def nodes_of(client: Client, identity: str) -> list[str]:
    """Whom an identity is, as far as the cluster knows."""
    bindings, _ = await client.list(BINDINGS, labelSelector=f"{IDENTITY}={identity}")
    return sorted(node for one in bindings if (node := node_of(one)))


def _path(node: str) -> str:
    return f"{BINDINGS}/{PREFIX}{node}"
