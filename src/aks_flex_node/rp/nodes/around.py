"""What all that is done with nodes needs around it, and how much of a cluster it has to know."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.rp.resource.configs import Secrets
from aks_flex_node.rp.resource.ways import Ways
from aks_flex_node.rp.store.store import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.clusters.access import Access
    from aks_flex_node.rp.clusters.facts import ClusterFacts
    from aks_flex_node.rp.clusters.tokens import MintedToken
    from aks_flex_node.rp.delivery.delivering import Delivering
    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.store.store import Document, Node, Store


@dataclass(frozen=True)
class Known:
    """A cluster that the service can make nodes for."""

    id: ClusterId
    facts: ClusterFacts
    follow_version: bool = False  # nodes that were given no version get the cluster's new one when it has one
    ways: Ways | None = None  # as a service noted them with the cluster, for all replicas; None before the first did


class Clusters(Protocol):
    async def find(self, key: str) -> Known | None:
        """It may be what was known some seconds ago."""
        ...

    async def is_there(self, key: str) -> bool:
        """At this moment."""
        ...

    async def mint(self, key: str, node: str, expires: float) -> MintedToken: ...

    async def revoke(self, key: str, token: str) -> bool:
        """False when the cluster could not be asked; the token is swept later then."""
        ...

    async def grant(self, key: str, node: str, access: Access) -> None:
        """What the node's identity needs to join. ClusterError when it cannot be given."""
        ...

    async def withdraw(self, key: str, node: str) -> bool:
        """False when the cluster could not be asked; it is taken later then."""
        ...


class RunningClusters(Clusters, Protocol):
    """The same, with a beginning and an end."""

    @property
    def count(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """Who asks, and from where: for the audit."""

    caller: Caller
    id: str
    source: str = ""
    may_see_secrets: bool = False  # also those that were written by others

    def event(self, at: float, what: str, resource: str, **detail: object) -> Event:
        return Event(at, self.caller.name, what, resource, self.source, self.id, detail=detail)


@dataclass(frozen=True)
class Workshop:
    store: Store
    sealer: Sealer
    delivery: Delivering
    clusters: Clusters
    token_seconds: float = 24 * 3600
    ways: Ways = field(default_factory=Ways)  # of this service
    now: Callable[[], float] = field(default=time.time)

    def ways_to(self, cluster: Known) -> Ways:
        """That all replicas give to the nodes of this cluster."""
        return cluster.ways or self.ways

    def open_secrets(self, node: Node) -> Secrets:
        """The secrets that a person wrote; the token is not kept, since it is in the bundle."""
        if not node.secrets:
            return Secrets()
        return Secrets(client_secret=self.sealer.open(node.secrets, secrets_of(node.cluster, node.key)).decode())

    def seal_secret(self, cluster: str, key: str, secret: str) -> bytes:
        return self.sealer.seal(secret.encode(), secrets_of(cluster, key)) if secret else b""


def secrets_of(cluster: str, key: str) -> str:
    """What sealed secrets are bound to: in another node's row they are worth nothing."""
    return f"secrets of {cluster}/{key}"


def changed(before: Document, after: Document, above: str = "") -> dict[str, list[object]]:
    """What differs between two documents: by its path, what it was and what it is."""
    differences: dict[str, list[object]] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        place = f"{above}.{key}" if above else key
        if isinstance(old, dict) and isinstance(new, dict):
            differences |= changed(old, new, place)
        elif old != new:
            differences[place] = [old, new]
    return differences
