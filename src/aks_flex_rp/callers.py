"""The authenticated caller of a request. Only `auth` creates it, from a verified credential."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from aks_flex_rp.text_enum import TextEnum


class CallerKind(TextEnum):
    """Kinds of callers, as in ARM's systemData. KEY, the local admin key, and NODE_KEY, the key of a node, are shown
    there as an Application.
    """

    USER = "User"
    APPLICATION = "Application"
    MANAGED_IDENTITY = "ManagedIdentity"
    KEY = "Key"
    NODE_KEY = "NodeKey"


NodeRef = tuple[str, str]  # key of the cluster, key of the node


@dataclass(frozen=True)
class Caller:
    id: str  # the object ID, "local-admin", or the thumbprint of a node key
    name: str  # display name in the audit log and in systemData
    kind: CallerKind
    tenant: str = ""
    ids: frozenset[str] = frozenset()  # lowercase IDs that role grants can name: object, application, groups
    own: frozenset[str] = frozenset()  # IDs of this caller alone, and of the machine or resource it belongs to
    node: NodeRef | None = None  # the only node as which the owner of a node key may act

    @cached_property
    def identity(self) -> str:
        """Returns the object ID with its tenant, as the store names the identities that have signed in."""
        return f"{self.id}@{self.tenant}"

    def is_node(self, identity: str) -> bool:
        """Returns whether a node's identity (`id`, or `id@tenant` if the tenant is known) names this caller."""
        name, _, tenant = identity.partition("@")
        return bool(name) and name in self.own and tenant in {"", self.tenant}
