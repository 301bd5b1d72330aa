"""One node for one Azure identity. Nodes that share an identity could act as each other.

A write that gives a node the identity of another is refused. That is not sufficient, because identities have several
IDs and writes are concurrent. So the node as which an identity first signs in owns it, until that node is deleted or
has another identity. Only a sign-in counts: the ID of an identity is not secret, and writing it into another node
must not cut off the node that has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.nodes.azure_cleanup import arc_machine_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.resource.properties import Properties
    from aks_flex_rp.store.base import Store

IN_USE = "IdentityInUse"
ATTEMPTS = 3  # with concurrent first sign-ins
REMEDY = "Give each node an identity of its own: nodes that share one could act as each other."


ENTRA_ID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def node_identity(properties: Properties, cluster: ClusterId, tenant: str, node: str) -> str:
    """Returns the identity that may act as the node, as `Caller.is_node` parses it, or an empty string if it has
    none.
    """
    identity, found = properties.identity, None
    if properties.auth_method == "arc":
        found = identity.get("principalId") or arc_machine_id(properties, cluster, node)
    else:
        found = identity.get("clientId") or identity.get("principalId")
    if not found:
        return ""
    home = (identity.get("clientTenant") or tenant).lower()
    # A tenant may also be given as a domain, but tokens contain only its ID.
    return f"{found}@{home}".lower() if ENTRA_ID_PATTERN.fullmatch(home) else found.lower()


@dataclass(frozen=True)
class IdentityOwnership:
    store: Store

    async def owner(self, caller: Caller, cluster: str, node: str, identity: str) -> tuple[str, str] | None:
        """Returns the node as which the caller may act, whose IDs match the identity of the node that it names.

        The first sign-in decides. A sign-in under another ID of the same identity is recorded too.
        """
        for _ in range(ATTEMPTS):
            owner = await self.store.identity_owner(caller.identity)
            if owner not in {None, (cluster, node)} and await self._is_node(caller, owner):
                return owner
            if await self.store.own_identity(caller.identity, cluster, node, identity, owner):
                return cluster, node
        return None

    async def _is_node(self, caller: Caller, owner: tuple[str, str]) -> bool:
        found = await self.store.node(*owner)
        return found is not None and caller.is_node(found.identity)

    async def check_unused(
        self, identity: str, cluster: str, node: str, may_see: Callable[[str], Awaitable[bool]]
    ) -> None:
        """Raises ArmError if another node has the identity.

        A node of a cluster that the caller may not see counts only if this identity has signed in as it: anyone can
        write the ID of an identity into a node of their own, also after they have signed in as it with another one.
        """
        for other, name, named in await self.store.nodes_with_identity(identity):
            if (other, name.lower()) == (cluster, node):
                continue
            visible = other == cluster or await may_see(other)
            if visible or await self.store.owned_identities(other, name.lower(), named):
                raise in_use(identity, other if visible else "", name)


def in_use(identity: str, cluster: str, name: str) -> ArmError:
    """Returns the error of a write. An empty `cluster` means that the caller may not see the other node."""
    known = parse_cluster_id(cluster)
    where = f"node {name} of cluster {known.name if known else cluster}" if cluster else "another node"
    message = f"The identity {identity.partition('@')[0]} already belongs to {where}. {REMEDY}"
    return ArmError(409, IN_USE, message, "properties.azureAuth")


def refused(node: str) -> ArmError:
    """Returns the error of a request as a node whose identity belongs to another node."""
    message = (
        f"The identity of this request may not act as node {node}, because it signed in as another node. {REMEDY}"
    )
    return ArmError(403, IN_USE, message)
