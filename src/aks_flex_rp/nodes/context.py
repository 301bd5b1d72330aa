"""Dependencies of all node operations, the interface of the cluster registry that they use, and optimistic
concurrency: a record is read, changed and written, again after a conflict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from aks_flex_node.api.arm_errors import NODE_NOT_KNOWN
from aks_flex_node.errors import FlexError
from aks_flex_rp.arm import errors
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.notify.node_events import EventPublisher, join_events, status_events
from aks_flex_rp.resource.config_generator import AgentEndpoints, NodeSecrets
from aks_flex_rp.store.model import AuditEvent, Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from aks_flex_rp.arm.errors import ArmError
    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.clusters.bootstrap_tokens import MintedToken
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.clusters.node_controller import NodeMachine
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.delivery.config_url import BundleDelivery
    from aks_flex_rp.join_state import ClusterAccess, JoinState
    from aks_flex_rp.node_keys import KeyUse
    from aks_flex_rp.notify.node_events import NodeEvent
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import AuditAction, Document, Node
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.pool_model import Enrolment


ATTEMPTS = 5  # on conflicts with other writers of the node

R = TypeVar("R")
T = TypeVar("T")


async def retry_on_conflict(
    read: Callable[[], Awaitable[R | None]],
    change: Callable[[R | None], Awaitable[T]],
    busy: Callable[[], Exception] | None = None,
    *,
    known: R | None = None,
) -> T:
    """Calls `change` with the record that was read, until it raises no Conflict.

    After the last attempt it raises `busy()`, or the Conflict if `busy` is not given. `known` is a record that the
    caller has already read; it is read again only after a conflict.
    """
    found = await read() if known is None else known
    for left in reversed(range(ATTEMPTS)):
        try:
            return await change(found)
        except Conflict:
            if not left and busy:
                raise busy() from None
            if not left:
                raise
        found = await read()
    raise AssertionError("The last attempt returns or raises.")


def node_busy(key: str) -> FlexError:
    return FlexError(
        "node-operation-in-progress",
        f"Other requests keep changing node {key}.",
        "The operation is retried automatically.",
        retryable=True,
    )


@dataclass(frozen=True)
class ClusterInfo:
    """A cluster to which flex nodes can be added."""

    id: ClusterId
    facts: ClusterFacts
    follow_version: bool = False  # nodes without a version of their own are upgraded with the cluster
    endpoints: AgentEndpoints | None = (
        None  # stored with the cluster for all replicas; None before the first replica stored them
    )
    key_audience: str = ""  # of the assertions of node keys; names this service and cluster

    @property
    def key(self) -> str:
        return self.id.key


class ClusterOperations(Protocol):
    async def find(self, key: str) -> ClusterInfo | None:
        """Returns a cluster. The information may be a few seconds old."""
        ...

    async def is_there(self, key: str) -> bool:
        """Returns whether the cluster exists now."""
        ...

    async def mint(self, key: str, node: str, expires: float) -> MintedToken: ...

    async def revoke(self, key: str, token: str) -> bool:
        """Revokes a token. Returns False if the cluster is unreachable; the token is swept later."""
        ...

    async def grant(self, key: str, node: str, access: ClusterAccess) -> None:
        """Grants the node's identity the access that it needs to join. Raises ClusterError if that fails."""
        ...

    async def withdraw(self, key: str, node: str) -> bool:
        """Withdraws the access. Returns False if the cluster is unreachable; it is withdrawn later."""
        ...

    async def node_machine(self, key: str, node: str) -> NodeMachine | None:
        """Returns the machine of the Node, or None if it does not exist. Raises FlexError if it cannot be read."""
        ...

    async def mark_machine(self, key: str, node: str, machine_id: str) -> None:
        """Annotates the Node with the machine on which it lives now, so that no other machine removes it."""
        ...


class RunningClusterOperations(ClusterOperations, Protocol):
    """Cluster operations that are started and stopped with the service."""

    @property
    def count(self) -> int: ...

    def client(self, key: str) -> KubeClient:
        """Returns the client of a cluster. Raises ClusterError if the service is not connected to it."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def _sees_nothing(_cluster: str) -> bool:
    return False


@dataclass(frozen=True)
class RequestContext:
    """The caller of a request, its address and request ID, for the audit log."""

    caller: Caller
    id: str
    source: str = ""
    may_see_secrets: bool = False  # also secrets that other users wrote
    is_owner: bool = False  # the caller may set the properties in `write_permissions`
    acts_as_node: bool = False  # the caller is the node of the request, and owns its identity
    key_use: KeyUse | None = None  # what the key of the caller is to the node, if it has called with one
    may_see: Callable[[str], Awaitable[bool]] = _sees_nothing  # whether the caller may read the nodes of a cluster

    @property
    def may_be_node(self) -> bool:
        """Whether the caller may be a node, also one that the service does not know."""
        return self.caller.kind not in {CallerKind.USER, CallerKind.KEY}

    def check_key(self, node: Node) -> None:
        """Raises ArmError if the node's key was revoked or replaced since the caller was authorized: a caller decides
        how long its body takes.
        """
        keys = node.join.keys
        by_key = self.caller.kind is CallerKind.NODE_KEY
        if self.acts_as_node and (keys.is_revoked or (not by_key and keys.blocks(node.identity))):
            raise errors.key_revoked(node.name)
        if by_key and not keys.is_valid(self.caller.id):
            raise errors.key_replaced(node.name)

    def event(self, at: float, what: AuditAction, resource: str, **detail: object) -> AuditEvent:
        who_id = self.caller.id
        return AuditEvent(at, self.caller.name, what, resource, self.source, self.id, detail=detail, who_id=who_id)


@dataclass(frozen=True)
class NodeContext:
    store: Store
    sealer: Sealer
    delivery: BundleDelivery
    clusters: ClusterOperations
    token_seconds: float = 24 * 3600
    allow_exec: bool = False  # whether new nodes may join by exec
    endpoints: AgentEndpoints = field(default_factory=AgentEndpoints)  # of this service
    now: Callable[[], float] = field(default=time.time)
    publisher: EventPublisher = field(default_factory=EventPublisher)
    # The time of the last poll or report of a node, by its cluster and key, that is not in the store yet.
    last_seen: Callable[[str, str], float] = lambda _cluster, _node: 0.0

    def endpoints_for(self, cluster: ClusterInfo) -> AgentEndpoints:
        """Returns the endpoints that all replicas give to the nodes of this cluster."""
        return cluster.endpoints or self.endpoints

    def messages_for(self, node: Node, events: Iterable[NodeEvent]) -> tuple[OutboxMessage, ...]:
        """Returns the notifications of a change, which are stored with it."""
        return self.publisher.messages_for(node, events, self.now())

    async def put_join(self, node: Node, join: JoinState, events: Sequence[AuditEvent] = ()) -> Node:
        """Writes the join state of a node that was read, with the notifications of its change."""
        after = replace(node, join=join)
        messages = self.messages_for(node, join_events(node.join, join))
        await self.store.put_node(after, node.etag, events, messages)
        return after

    async def put_status(self, node: Node, status: Document, seen: float) -> bool:
        """Writes the status of a node that was read, with the notifications of its change. Returns False if the node
        is deleted.
        """
        messages = self.messages_for(node, status_events(node.status, status))
        before = node.status if messages else None
        return await self.store.report(node.cluster, node.key, status, seen, messages, before)

    async def change_node(
        self,
        cluster: str,
        name: str,
        change: Callable[[Node | None], Awaitable[T]],
        *,
        busy: Callable[[str], Exception] = errors.concurrent_changes,
        known: Node | None = None,
    ) -> T:
        """Calls `change` with the node that was read, again if another writer changed it meanwhile."""
        return await retry_on_conflict(
            lambda: self.store.node(cluster, name.lower()), change, lambda: busy(name), known=known
        )

    async def change_enrolment(
        self,
        cluster: str,
        key: str,
        change: Callable[[Enrolment | None], Awaitable[T]],
        busy: Callable[[str], Exception] = lambda key: errors.concurrent_changes(key, "enrolments"),
    ) -> T:
        """Calls `change` with the enrolment that was read, again if another writer changed it meanwhile."""
        return await retry_on_conflict(lambda: self.store.enrolment(cluster, key), change, lambda: busy(key))

    async def missing_node(self, cluster: ClusterInfo, name: str, request: RequestContext | None = None) -> ArmError:
        """Returns the error for a node that was not found.

        A node removes itself from the cluster if its resource was not found. So a caller that may be one
        is told that only if the store has the authenticated record of a deletion.
        """
        may_be_node = request is not None and request.may_be_node
        if may_be_node and not (await self.store.last_known_node(cluster.key, name.lower())).deleted:
            message = (
                f"The service has no record of the node '{name}' of the cluster '{cluster.id.name}', and none of its "
                "deletion. Create it, or restore the database if it existed."
            )
            return errors.ArmError(404, NODE_NOT_KNOWN, message)
        return errors.node_not_found(cluster.id, name)

    def open_secrets(self, node: Node) -> NodeSecrets:
        """Decrypts the secrets of a node. The bootstrap token is not stored, because it is in the bundle."""
        if not node.secrets:
            return NodeSecrets()
        return NodeSecrets(
            client_secret=self.sealer.open(node.secrets, secrets_seal_context(node.cluster, node.key)).decode()
        )

    def seal_secret(self, cluster: str, key: str, secret: str) -> bytes:
        return self.sealer.seal(secret.encode(), secrets_seal_context(cluster, key)) if secret else b""


def secrets_seal_context(cluster: str, key: str) -> str:
    """Returns the context that binds encrypted secrets to their node."""
    return f"secrets of {cluster}/{key}"


def property_changes(before: Document, after: Document, above: str = "") -> dict[str, list[object]]:
    """Returns the differences between two documents: by path, the old and the new value."""
    differences: dict[str, list[object]] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        path = f"{above}.{key}" if above else key
        if isinstance(old, dict) and isinstance(new, dict):
            differences |= property_changes(old, new, path)
        elif old != new:
            differences[path] = [old, new]
    return differences
