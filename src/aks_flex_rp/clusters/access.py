"""Access of a node's Azure identity to the cluster: one ClusterRoleBinding per node, removed with the node.

With `exec` the kubelet always authenticates with the identity. Its role and an admission policy limit what it can
write to its own Node, see `admission_policies`. With `certificate` the identity may only request the node's
certificate. Bindings are created when a node requests access and removed when it is deleted. A controller reconciles
them with the store for the rest: clusters that were unreachable, restarts in between, and manual changes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.clusters.admission_policies import BINDING_PREFIX, EXEC_LABEL, RBAC
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import LOST_AFTER_SECONDS, NODES, is_flex_node
from aks_flex_rp.clusters.prerequisites import BINDINGS
from aks_flex_rp.join_state import ACCESS_ROLES, KUBELET_ROLE, AccessMethod, ClusterAccess

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler

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


# Access is recorded only after it is granted, so a younger difference is not drift.
SETTLE_SECONDS = 15.0

log = logging.getLogger(__name__)


@dataclass
class AccessController:
    """Reconciles the access of the nodes of one cluster.

    Informed by the watch on bindings and by changes of nodes.
    """

    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    settle: float = SETTLE_SECONDS
    gone_after: float = LOST_AFTER_SECONDS
    # By node. None if the binding differs from what the service creates.
    there: dict[str, ClusterAccess | None] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)  # by node, since when

    async def listed(self, items: list[KubeObject]) -> None:
        self.there = {name: read_binding(item) for item in items if (name := binding_node(item))}
        desired = await self.handler.all_granted_access(self.cluster)
        for name in {*self.there, *desired}:
            if self.there.get(name) != desired.get(name) or name not in desired:
                self.mark_due(name)

    async def changed(self, kind: str, item: KubeObject) -> None:
        name = binding_node(item)
        if kind == "DELETED":
            self.there.pop(name, None)
        elif name:
            self.there[name] = read_binding(item)
        if name:
            self.due[name] = time.monotonic()  # another process is changing it now

    def mark_due(self, name: str | None) -> None:
        """Marks a node for reconciliation, because its desired access may have changed. None means all nodes."""
        for one in self.there if name is None else [name]:
            self.due.setdefault(one, time.monotonic())

    async def clean_up(self) -> None:
        """Reconciles the nodes whose difference is old enough. A node that fails stays due."""
        await handle_each(list(self.due), self._reconcile)

    async def _reconcile(self, name: str) -> None:
        since = self.due[name]
        if time.monotonic() - since < self.settle:
            return
        desired = await self.handler.granted_access(self.cluster, name)
        if desired is None and name in self.there:
            if await self._is_leaving(name):
                self.due[name] = time.monotonic()  # check again later
                return
            if await withdraw_access(self.client, name):
                log.info("%s: removed the access of the identity of node %s.", self.cluster, name)
                await self.handler.on_access_withdrawn(self.cluster, name)
        elif desired and desired.role and desired != self.there.get(name):
            await grant_access(self.client, name, desired)
            log.info("%s: corrected the access of the identity of node %s.", self.cluster, name)
        if self.due.get(name) == since:  # otherwise it changed meanwhile and is checked again
            self.due.pop(name)

    async def _is_leaving(self, name: str) -> bool:
        """Returns whether a deleted node still needs its identity to drain and to report that it left."""
        access, deleted = self.there.get(name), await self.handler.deletion_time(self.cluster, name)
        if (
            access is None
            or access.method is not AccessMethod.EXEC
            or deleted is None
            or time.time() - deleted > self.gone_after
        ):
            return False
        node = await self.client.find(f"{NODES}/{name}")
        return node is not None and is_flex_node(node)
