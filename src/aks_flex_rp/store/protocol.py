"""The Store protocol. Two implementations share one test suite.

A write is durable when it returns. Reads see every completed write, on this replica immediately and on others within
milliseconds. `changes` notifies subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aks_flex_rp.store.enrolments import EnrolmentsProtocol
from aks_flex_rp.store.heartbeat import HeartbeatProtocol
from aks_flex_rp.store.outbox import OutboxProtocol
from aks_flex_rp.store.pools import PoolsProtocol
from aks_flex_rp.store.rollout_overview import RolloutOverviewProtocol
from aks_flex_rp.store.rollouts import RolloutsProtocol

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


class Store(
    OutboxProtocol,
    HeartbeatProtocol,
    PoolsProtocol,
    EnrolmentsProtocol,
    RolloutsProtocol,
    RolloutOverviewProtocol,
    Protocol,
):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def healthy(self) -> bool: ...

    # Clusters
    async def put_cluster(self, cluster: Cluster, expected: int | None) -> None:
        """Creates a cluster (`expected` is None) or replaces it if its version is `expected`.

        Raises Conflict otherwise.
        """
        ...

    async def cluster(self, key: str) -> Cluster | None: ...

    async def clusters(self) -> tuple[Cluster, ...]:
        """Returns the clusters whose records are authentic."""
        ...

    async def cluster_keys(self) -> tuple[str, ...]:
        """Returns the keys of all clusters, also of those that are refused."""
        ...

    async def delete_cluster(self, key: str) -> bool:
        """Deletes a cluster. Returns False if it does not exist. Raises Conflict while it has nodes."""
        ...

    # Nodes
    async def put_node(
        self,
        node: Node,
        expected: str | None,
        events: Sequence[AuditEvent] = (),
        messages: Sequence[OutboxMessage] = (),
        *,
        retire: bool = False,
        decided: tuple[int, str] | None = None,
        override: str = "",
    ) -> None:
        """Creates a node (`expected` is None) or replaces it if its etag is `expected`.

        Its audit events and messages are written in the same transaction. With `retire`, its delivery is deleted in
        it as well. With `decided`, it is replaced only while it has this state in the roll-out of this number.
        `override` is who takes the node out of its roll-out.

        Raises Conflict if the etag or the revision differs, and if the version does not increase: a new node's
        version must be above every earlier one of its name, a replaced node's may stay the same. `last_seen` is never
        written here, and `status` only when the node is created, so that a concurrent report is not overwritten.
        """
        ...

    async def node(self, cluster: str, key: str) -> Node | None:
        """Returns a node. Raises RecordRefused if it was changed without the service."""
        ...

    async def nodes(self, cluster: str, after: str = "", limit: int = 100) -> NodePage:
        """Returns nodes of a cluster, ordered by key, without those that are refused."""
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
        """Deletes a node with its delivery, and writes its audit events and messages, in one transaction.

        Returns False if it does not exist. Raises Conflict if its etag differs. With `expected` None, any
        version is deleted.
        """
        ...

    async def last_known_node(self, cluster: str, key: str) -> LastKnownNode:
        """Returns what is stored about a node, also after its deletion."""
        ...

    # Identities of nodes
    async def nodes_with_identity(self, identity: str) -> tuple[tuple[str, str, str], ...]:
        """Returns cluster, name and identity of nodes with this identity, with or without its tenant, at most 100."""
        ...

    async def identity_owner(self, identity: str) -> tuple[str, str] | None:
        """Returns cluster and key of the node that owns an identity, also after the node's deletion."""
        ...

    async def owned_identities(self, cluster: str, key: str, node_identity: str) -> frozenset[str]:
        """Returns the identities that have signed in as a node when it had this identity, and belong to it."""
        ...

    async def own_identity(
        self, identity: str, cluster: str, key: str, node_identity: str, expected: tuple[str, str] | None = None
    ) -> bool:
        """Makes a node, with the identity that it has, the owner of an identity that signed in as it.

        Returns False if the owner is not `expected`, or exists if None.
        """
        ...

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
        """Updates `last_seen` of many nodes from (cluster, node, time). Subscribers are not notified."""
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
        """Stores the reported status of a node. Etag and version do not change. Returns False if it does not exist.

        With `before`, raises Conflict if the stored status differs, because the messages describe the
        difference to it.
        """
        ...

    # Fleet index
    async def cluster_numbers(self) -> dict[str, int]:
        """Returns the number of each cluster in the fleet index."""
        ...

    async def fleet(self, query: FleetQuery, now: float) -> tuple[FleetEntry, ...]: ...

    async def count_fleet(self, query: FleetQuery, now: float) -> int: ...

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        """Returns the number of nodes by state, version and problems."""
        ...

    async def repair_fleet(self) -> int:
        """Rebuilds rows that differ from their nodes and returns their number. Alarms of nodes without a row."""
        ...

    # Sessions of dashboard users
    async def put_session(self, session: UserSession) -> None: ...

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        """Returns a session that has not expired."""
        ...

    async def confirm_session(self, session: UserSession) -> bool:
        """Writes the user, the refresh token and the time of a check. Returns False if the session has ended."""
        ...

    async def use_session(self, id: str, used: float) -> None: ...  # noqa: A002

    async def end_session(self, id: str) -> None: ...  # noqa: A002

    async def sweep_sessions(self, now: float, idle_since: float) -> int:
        """Deletes expired and idle sessions and returns their number."""
        ...

    # Deliveries
    async def put_delivery(self, delivery: Delivery) -> None:
        """Stores a delivery and deletes every earlier one of the node in the same transaction."""
        ...

    async def fetch_delivery(self, id: str, now: float) -> Delivery | None:  # noqa: A002
        """Returns a delivery that has not expired, and counts the fetch in the same transaction."""
        ...

    async def revoke_deliveries(self, cluster: str, node: str) -> int: ...

    async def sweep(self, now: float) -> int:
        """Deletes expired deliveries and returns their number."""
        ...

    # Audit log
    async def record(self, *events: AuditEvent) -> None: ...

    async def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        """Returns events, newest first. `before` is the sequence number of the last event of the previous page.

        `resource` is a case-insensitive ARM ID and includes all resources below it.
        """
        ...

    async def forget_audit(self, before: float) -> None:
        """Deletes events that are older than this time."""
        ...

    # Change notifications
    def changes(self) -> AsyncIterator[StoreChange]:
        """Yields every node that is written or deleted, on any replica, from this call until the store stops.

        A slow consumer gets only the newest change of a node, or a Resync.
        """
        ...
