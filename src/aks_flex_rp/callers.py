"""The authenticated caller of a request. Created by `auth` from a verified credential, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from aks_flex_rp.text_enum import TextEnum


class CallerKind(TextEnum):
    """As systemData names them; KEY, the local admin key, is an Application there."""

    USER = "User"
    APPLICATION = "Application"
    MANAGED_IDENTITY = "ManagedIdentity"
    KEY = "Key"


@dataclass(frozen=True)
class Caller:
    id: str  # its object id, or "local-admin"
    name: str  # for people: in the audit and in systemData
    kind: CallerKind
    tenant: str = ""
    ids: frozenset[str] = frozenset()  # all that roles may be given to, in lower case: object, application, groups
    own: frozenset[str] = frozenset()  # those that are nobody else's, and the machine or resource that it belongs to

    def is_node(self, identity: str) -> bool:
        """Whether this is whom a node's identity names: `id`, or `id@tenant` where the tenant is known."""
        name, _, tenant = identity.partition("@")
        return bool(name) and name in self.own and tenant in {"", self.tenant}
