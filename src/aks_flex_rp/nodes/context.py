"""Dependencies that are passed to all node operations, and the interface of the cluster registry that they use."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aks_flex_rp.resource.config_generator import AgentEndpoints, NodeSecrets
from aks_flex_rp.store.model import AuditEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.clusters.bootstrap_tokens import MintedToken
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.delivery.config_url import BundleDelivery
    from aks_flex_rp.join_state import ClusterAccess
    from aks_flex_rp.store.model import AuditAction, Document, Node
    from aks_flex_rp.store.protocol import Store


@dataclass(frozen=True)
class ClusterInfo:
    """A cluster that the service can make nodes for."""

    id: ClusterId
    facts: ClusterFacts
    follow_version: bool = False  # nodes that were given no version get the cluster's new one when it has one
    endpoints: AgentEndpoints | None = (
        None  # as a service noted them with the cluster, for all replicas; None before the first did
    )


class ClusterOperations(Protocol):
    async def find(self, key: str) -> ClusterInfo | None:
        """It may be what was known some seconds ago."""
        ...

    async def is_there(self, key: str) -> bool:
        """At this moment."""
        ...

    async def mint(self, key: str, node: str, expires: float) -> MintedToken: ...

    async def revoke(self, key: str, token: str) -> bool:
        """False when the cluster could not be asked; the token is swept later then."""
        ...

    async def grant(self, key: str, node: str, access: ClusterAccess) -> None:
        """What the node's identity needs to join. ClusterError when it cannot be given."""
        ...

    async def withdraw(self, key: str, node: str) -> bool:
        """False when the cluster could not be asked; it is taken later then."""
        ...


class RunningClusterOperations(ClusterOperations, Protocol):
    """The same, with a beginning and an end."""

    @property
    def count(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class RequestContext:
    """Who asks, and from where: for the audit."""

    caller: Caller
    id: str
    source: str = ""
    may_see_secrets: bool = False  # also those that were written by others

    def event(self, at: float, what: AuditAction, resource: str, **detail: object) -> AuditEvent:
        return AuditEvent(at, self.caller.name, what, resource, self.source, self.id, detail=detail)


@dataclass(frozen=True)
class NodeContext:
    store: Store
    sealer: Sealer
    delivery: BundleDelivery
    clusters: ClusterOperations
    token_seconds: float = 24 * 3600
    endpoints: AgentEndpoints = field(default_factory=AgentEndpoints)  # of this service
    now: Callable[[], float] = field(default=time.time)

    def endpoints_for(self, cluster: ClusterInfo) -> AgentEndpoints:
        """That all replicas give to the nodes of this cluster."""
        return cluster.endpoints or self.endpoints

    def open_secrets(self, node: Node) -> NodeSecrets:
        """The secrets that a person wrote; the token is not kept, since it is in the bundle."""
        if not node.secrets:
            return NodeSecrets()
        return NodeSecrets(
            client_secret=self.sealer.open(node.secrets, secrets_seal_context(node.cluster, node.key)).decode()
        )

    def seal_secret(self, cluster: str, key: str, secret: str) -> bytes:
        return self.sealer.seal(secret.encode(), secrets_seal_context(cluster, key)) if secret else b""


def secrets_seal_context(cluster: str, key: str) -> str:
    """What sealed secrets are bound to: in another node's row they are worth nothing."""
    return f"secrets of {cluster}/{key}"


def property_changes(before: Document, after: Document, above: str = "") -> dict[str, list[object]]:
    """What differs between two documents: by its path, what it was and what it is."""
    differences: dict[str, list[object]] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        path = f"{above}.{key}" if above else key
        if isinstance(old, dict) and isinstance(new, dict):
            differences |= property_changes(old, new, path)
        elif old != new:
            differences[path] = [old, new]
    return differences
