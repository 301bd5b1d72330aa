"""The Store protocol. Two implementations share one test suite.

A write is durable when it returns. Reads see every completed write, on this replica at once and on others within
milliseconds; `changes` notifies subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aks_flex_rp.store.heartbeat import HeartbeatProtocol
from aks_flex_rp.store.outbox import OutboxProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_rp.store.changes import StoreChange
    from aks_flex_rp.store.fleet import FleetCount, FleetEntry, FleetQuery
    from aks_flex_rp.store.model import (
        AuditEvent,
        Cluster,
        Delivery,
        Document,
        LastKnownNode,
        Node,
        NodePage,
        UserSession,
    )
    from aks_flex_rp.store.outbox import OutboxMessage


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

    async def last_known_node(self, cluster: str, key: str) -> LastKnownNode:
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
        timestamp: float,
        messages: Sequence[OutboxMessage] = (),
        before: Document | None = None,
    ) -> bool:
        """What an agent says of its node; neither etag nor version changes. False when there is no such node.

        With `before`, which messages tell the difference from: Conflict when its status is another meanwhile.
        """
        ...

    # the fleet
    async def cluster_numbers(self) -> dict[str, int]:
        """The number that each cluster has in the fleet."""
        ...

    async def fleet(self, query: FleetQuery, now: float) -> tuple[FleetEntry, ...]: ...

    async def count_fleet(self, query: FleetQuery, now: float) -> int: ...

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        """Of all nodes, how many are alike."""
        ...

    async def refresh_fleet(self) -> int:
        """Before anything else: make rows anew that an earlier release, or the step to this one, left; how many."""
        ...

    async def repair_fleet(self) -> int:
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
        self, *, resource: str = "", caller: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        """The newest first; `before` is the sequence number where the last page ended.

        `resource` is an ARM id in any case, and stands for everything below it, too.
        """
        ...

    async def forget_audit(self, before: float) -> None:
        """Lines that are older than this moment."""
        ...

    # waiting
    def changes(self) -> AsyncIterator[StoreChange]:
        """Every node that is written or deleted, here or on another replica.

        It counts from this call on, and ends when the store stops. A consumer that lags hears of a node's newest
        change alone, or of a Resync.
        """
        ...
