"""Stored records, the Store protocol, and its errors. Two implementations share one test suite.

A write is durable when it returns. Reads see every completed write, on this replica at once and on others within
milliseconds; `changes` notifies subscribers.

StoreError              the store cannot execute the request
|-- Unavailable         temporary: the same request may succeed later
`-- Newer               the data was written by a newer version of this program
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.errors import FlexError
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.heartbeat import HeartbeatProtocol
from aks_flex_rp.store.outbox import OutboxProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_rp.store.fleet import FleetCount, FleetEntry, FleetQuery
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.user_sessions import UserSession


Document = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A cluster that nodes can be made for."""

    key: str  # its ARM id in lower case
    id: str  # as it was written
    facts: Document  # what the service read from it: version, server, CA, DNS address, location, tenant
    connection: bytes  # how to reach it (a kubeconfig, or an ARM reference), encrypted
    version: int = 1  # raised by every change, for optimistic writes


@dataclass(frozen=True)
class Node:
    """One flexNodeConfig."""

    cluster: str  # the cluster's key
    key: str  # its name in lower case
    name: str  # as it was last written
    version: (
        int  # configVersion: seconds since 1970, strictly increasing for a node, also over deletion and re-creation
    )
    etag: str
    properties: Document  # as accepted, without secrets
    config: Document  # what the node gets, without secrets
    secrets: bytes = b""  # encrypted
    system: Document = field(default_factory=dict)  # systemData
    join: JoinState = field(default_factory=JoinState)
    status: Document = field(default_factory=dict)  # what the agent last reported
    identity: str = ""  # whose token speaks for this node (an object or client id), if it has one
    last_seen: float = 0.0
    created: float = 0.0
    revision: int = field(default=0, compare=False)  # raised by every write; 0 when it was not read from the store


@dataclass(frozen=True)
class Delivery:
    """A bundle that waits to be fetched by whoever has its URL."""

    id: str  # hash of the secret in the URL; the secret itself is nowhere
    cluster: str
    node: str
    expires: float
    bundle: bytes  # encrypted
    fetched: int = 0


@dataclass(frozen=True)
class AuditEvent:
    """A line of the audit."""

    at: float
    who: str
    what: str
    resource: str
    source: str = ""  # the caller's address
    request: str = ""
    outcome: str = "ok"
    detail: Document = field(default_factory=dict)
    sequence: int = 0  # given by the store


@dataclass(frozen=True)
class NodeTrace:
    version: int = 0  # the highest configVersion that a node of this name ever had; 0 when there never was one
    identity: str = ""  # whose token spoke for it last


@dataclass(frozen=True)
class NodePage:
    nodes: tuple[Node, ...]
    after: str | None  # where the next page begins; None on the last


class Conflict(Exception):  # noqa: N818 - an answer, and often an expected one
    """Somebody else was faster: what was to be changed is not as it was read."""


class Store(OutboxProtocol, HeartbeatProtocol, Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def healthy(self) -> bool: ...

    # clusters
    async def put_cluster(self, cluster: Cluster, expected: int | None) -> None:
        """Create (expected None: only if there is none) or replace (only if its version is `expected`)."""
        ...

    async def cluster(self, key: str) -> Cluster | None: ...

    async def clusters(self) -> tuple[Cluster, ...]: ...

    async def delete_cluster(self, key: str) -> bool:
        """False when there is none; Conflict while it has nodes."""
        ...

    # nodes
    async def put_node(
        self,
        node: Node,
        expected: str | None,
        events: Sequence[AuditEvent] = (),
        messages: Sequence[OutboxMessage] = (),
        *,
        retire: bool = False,
    ) -> None:
        """Create (expected None) or replace (only if its etag is `expected`), with its audit and with what is to be
        told of it, in one step.

        With `retire`, its delivery ends in the same step.

        Conflict when it is not as expected, nor of the revision that was read, and when the version would not grow:
        a new node's must be above every
        earlier one of its name, a replaced node's may stay the same. `last_seen` is never written from here, and
        `status` only when the node is created: a report that came after the node was read must not be undone.
        """
        ...

    async def node(self, cluster: str, key: str) -> Node | None: ...

    async def nodes(self, cluster: str, after: str = "", limit: int = 100) -> NodePage:
        """The nodes of a cluster in the order of their keys."""
        ...

    async def count_nodes(self) -> int: ...

    async def delete_node(
        self,
        cluster: str,
        key: str,
        expected: str | None,
        events: Sequence[AuditEvent] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """With its delivery, its audit and its messages, in one step.

        False when there is none; Conflict when its etag is another. None for `expected` deletes it as it is.
        """
        ...

    async def trace(self, cluster: str, key: str) -> NodeTrace:
        """What is remembered of a node, also of one that was deleted."""
        ...

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
        """Many (cluster, node, moment) at once: `last_seen` grows, and nothing else changes or wakes anybody."""
        ...

    async def report(
        self,
        cluster: str,
        key: str,
        status: Document,
        moment: float,
        messages: Sequence[OutboxMessage] = (),
        before: Document | None = None,
    ) -> bool:
        """What an agent says of its node; neither etag nor version changes. False when there is no such node.

        With `before`, which messages tell the difference from: Conflict when its status is another meanwhile.
        """
        ...

    # the fleet
    async def places(self) -> dict[str, int]:
        """The number that each cluster has in the fleet."""
        ...

    async def fleet(self, asked: FleetQuery, now: float) -> tuple[FleetEntry, ...]: ...

    async def count_fleet(self, asked: FleetQuery, now: float) -> int: ...

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        """Of all nodes, how many are alike."""
        ...

    async def refresh_fleet(self) -> int:
        """Before anything else: make rows anew that an earlier release, or the step to this one, left; how many."""
        ...

    async def mend_fleet(self) -> int:
        """Make right what a replica of an earlier release has written without its row; how many rows that were."""
        ...

    # sessions of people
    async def put_session(self, session: UserSession) -> None: ...

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        """One that has not expired."""
        ...

    async def use_session(self, id: str, used: float) -> None: ...  # noqa: A002

    async def end_session(self, id: str) -> None: ...  # noqa: A002

    async def sweep_sessions(self, now: float, idle_since: float) -> int:
        """Forget those that expired or were not used since then; how many there were."""
        ...

    # deliveries
    async def put_delivery(self, delivery: Delivery) -> None:
        """Every earlier delivery of the same node is gone in the same step."""
        ...

    async def fetch_delivery(self, id: str, now: float) -> Delivery | None:  # noqa: A002
        """A delivery that has not expired; that it was fetched is counted in the same step."""
        ...

    async def revoke_deliveries(self, cluster: str, node: str) -> int: ...

    async def sweep(self, now: float) -> int:
        """Forget expired deliveries; how many there were."""
        ...

    # audit
    async def record(self, *events: AuditEvent) -> None: ...

    async def audit(
        self, *, resource: str = "", who: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        """The newest first; `before` is the sequence number where the last page ended.

        `resource` is an ARM id in any case, and stands for everything below it, too.
        """
        ...

    async def forget_audit(self, before: float) -> None:
        """Lines that are older than this moment."""
        ...

    # waiting
    def changes(self) -> AsyncIterator[tuple[str, str, int]]:
        """(cluster, node, version) of every node that is written or deleted (version 0), here or on another replica.

        It counts from this call on, and ends when the store stops. A consumer that lags hears of a node's newest
        change alone; ("", "", 0) says that something may have been missed, and that everything is to be read again;
        ("", "", -1) the same, and that nothing will be heard until ("", "", 0) comes.
        """
        ...


class StoreError(FlexError):
    pass


class StoreUnavailable(StoreError):  # noqa: N818 - it says what is the case, as Conflict does
    """The database is away, or full, or busy. `executed` says whether a write may have been done nevertheless."""

    def __init__(self, message: str, hint: str = "", *, executed: bool = False) -> None:
        super().__init__("store-unavailable", message, hint, again=True)
        self.executed = executed


class SchemaTooNew(StoreError):  # noqa: N818
    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            "store-is-newer",
            f"The store has schema version {found}, and this program knows versions up to {known}.",
            "Run the newer program, or restore a backup that was made before the upgrade.",
        )
