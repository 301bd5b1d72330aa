"""The store: what both databases have in common, on three primitives that each of them implements.

A write is durable when it returns. Reads see every completed write, on this replica immediately and on others within
milliseconds. `changes` notifies subscribers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_rp.node_keys import parse_tombstone_identity
from aks_flex_rp.store import fleet, outbox, rows, sql
from aks_flex_rp.store.authenticated_rows import recorded, verified_records
from aks_flex_rp.store.changes import ChangeBroadcast, NodeDeleted, NodeWritten
from aks_flex_rp.store.fleet_repair import FleetRepair
from aks_flex_rp.store.heartbeat import Heartbeats
from aks_flex_rp.store.model import (
    AuditEvent,
    Cluster,
    Conflict,
    Delivery,
    Document,
    LastKnownNode,
    Node,
    NodePage,
    RecordRefused,
    RecordUnverifiable,
    RefusedNode,
    UserSession,
)
from aks_flex_rp.store.outbox import Outbox
from aks_flex_rp.store.pools import Enrolments, Pools
from aks_flex_rp.store.record_authenticator import (
    escaped,
    identity_owner_row,
    is_deleted,
    node_row,
    session_row,
    signed_identity_owner,
    signed_node,
    signed_session,
    signed_tombstone,
)
from aks_flex_rp.store.rollouts import Rollouts, signal
from aks_flex_rp.store.signed_tables import CLUSTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_rp.store.changes import StoreChange
    from aks_flex_rp.store.fleet import FleetCount, FleetEntry, FleetQuery
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.record_authenticator import RecordAuthenticator
    from aks_flex_rp.store.rows import Values

LARGEST = 2**63 - 1
ALL_CLUSTERS = f"{CLUSTERS.select} ORDER BY key"


class Store(Pools, Enrolments, Rollouts, Outbox, Heartbeats, FleetRepair, ABC):
    def __init__(self, records: RecordAuthenticator) -> None:
        super().__init__(records)
        self._changes = ChangeBroadcast()

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def healthy(self) -> bool: ...

    # Clusters
    async def put_cluster(self, cluster: Cluster, expected: int | None) -> None:
        """Creates a cluster (`expected` is None) or replaces it if its version is `expected`.

        Raises Conflict otherwise.
        """
        values = self._signed(CLUSTERS, cluster)
        if expected is None:
            done = await self._write(sql.CREATE_CLUSTER, values)
        else:
            done = await self._write(sql.REPLACE_CLUSTER, (*values, expected))
        if not done:
            raise Conflict(f"The cluster {cluster.id} was changed since it was read.")

    async def cluster(self, key: str) -> Cluster | None:
        return await self._one(CLUSTERS, CLUSTERS.select_one, key)

    async def clusters(self) -> tuple[Cluster, ...]:
        """Returns the clusters whose records are authentic."""
        return await self._authentic(CLUSTERS, await self._read(ALL_CLUSTERS))

    async def cluster_keys(self) -> tuple[str, ...]:
        """Returns the keys of all clusters, also of those that are refused."""
        return tuple(str(row[0]) for row in await self._read(ALL_CLUSTERS))

    async def delete_cluster(self, key: str) -> bool:
        """Deletes a cluster. Returns False if it does not exist. Raises Conflict while it has nodes."""
        if await self._write(sql.DELETE_CLUSTER, (key,)):
            return True
        if not await self._read(CLUSTERS.select_one, key):
            return False
        raise Conflict(f"The cluster {key} still has nodes.")

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
        is_new = expected is None
        text, first = (sql.CREATE_NODE, rows.to_json(node.status)) if is_new else (sql.REPLACE_NODE, expected)
        read = 0 if is_new else node.revision
        known = read or await self._revision(node.cluster, node.key)
        # If the row of an earlier node was deleted, services may remember its revision.
        revision = known + 1 if known else self._records.new_revision(node.cluster, node.key)
        columns = rows.node_values(node)
        last: Values = (first, self._records.sign(signed_node(columns, revision)), revision)
        number = await self._cluster_number(node.cluster)
        more = (*([sql.FORGET_DELIVERY] if retire else ()), *recorded(events), *outbox.enqueue(messages))
        follows = (fleet.upsert_row(number, node), signal(override), *more)
        if decided:
            text, last = sql.REPLACE_NODE_IN_ROLLOUT, (*last, *decided)
        write, values = sql.compose_write(text, (*columns, *last), *follows)
        if not await self._write(write, values, NodeWritten(node.cluster, node.key, node.version)):
            raise Conflict(f"The node {node.name} was changed since it was read.")

    async def node(self, cluster: str, key: str) -> Node | None:
        """Returns a node. Raises RecordRefused if it was changed without the service."""
        found = await self._read(sql.NODE, cluster, key)
        return await self._verified_node(found[0]) if found else None

    async def _revision(self, cluster: str, key: str) -> int:
        """Returns the revision of a row, also of a deleted node; 0 if there is none."""
        found = await self._read(sql.NODE_REVISION, cluster, key)
        if found and not isinstance(found[0][0], int):
            raise RecordRefused(f"node {cluster}/{key}", "its revision is not a number", key)
        return int(found[0][0]) if found else 0

    async def nodes(self, cluster: str, after: str = "", limit: int = 100) -> NodePage:
        """Returns nodes of a cluster, ordered by key, without those that are refused."""
        limit = clamp_limit(limit)
        found = await self._read(sql.NODES, cluster, after, limit + 1)
        nodes, refused = await verified_records(self._verified_node, found[:limit])
        last = found[limit - 1][1] if len(found) > limit else None
        following = last if isinstance(last, str) else None  # SQLite sorts other types after text
        return NodePage(
            nodes, following, tuple(RefusedNode(str(row[1]), escaped(row[1]), error) for row, error in refused)
        )

    async def each_node(self, cluster: str, pool: str = "", at_once: int = 500) -> AsyncIterator[Node]:
        """Yields the nodes of a cluster, or of one of its pools, without those that are refused."""
        after: str | None = ""
        while after is not None:
            reading = self.pool_nodes(cluster, pool, after, at_once) if pool else self.nodes(cluster, after, at_once)
            page = await reading
            for node in page.nodes:
                yield node
            after = page.after

    async def count_nodes(self) -> int:
        return int((await self._read(sql.COUNT_NODES))[0][0])

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
        more = (sql.FORGET_DELIVERY, sql.FORGET_MACHINE, signal(), *recorded(events), *outbox.enqueue(messages))
        follows = (fleet.delete_row(await self._cluster_number(cluster), key), *more)
        while found := await self._read(sql.SELECT_SIGNED_NODE, cluster, key):
            row = found[0]
            if is_deleted(row[13]):
                return False
            if expected and row[4] != expected:
                break
            version, identity, revision = self._records.last_values(row)
            code = self._records.sign(signed_tombstone(cluster, key, version, identity, revision))
            decisive = (cluster, key, expected or "", revision, code, row[12], version, identity)
            if await self._write(*sql.compose_write(sql.DELETE_NODE, decisive, *follows), NodeDeleted(cluster, key)):
                return True
        else:
            return False
        raise Conflict(f"The node {key} was changed since it was read.")

    async def last_known_node(self, cluster: str, key: str) -> LastKnownNode:
        """Returns what is stored about a node, also after its deletion."""
        found = await self._read(sql.SELECT_SIGNED_NODE, cluster, key)
        row = await self._verified_row(found[0], node_row, sql.SELECT_SIGNED_NODE) if found else None
        if row is None:
            return LastKnownNode()
        if is_deleted(row[13]):
            identity, keys = parse_tombstone_identity(row[10])
            return LastKnownNode(row[3], identity, deleted=True, keys=keys)
        return LastKnownNode(row[3], row[10], keys=rows.keys_of(row[9]))

    # Identities of nodes
    async def nodes_with_identity(self, identity: str) -> tuple[tuple[str, str, str], ...]:
        """Returns cluster, name and identity of nodes with this identity, with or without its tenant, at most 100."""
        found = await self._read(sql.NODES_WITH_IDENTITY, identity, identity.partition("@")[0])
        return tuple((str(cluster), str(name), str(text)) for cluster, name, text in found)

    async def identity_owner(self, identity: str) -> tuple[str, str] | None:
        """Returns cluster and key of the node that owns an identity, also after the node's deletion."""
        for row in await self._read(sql.IDENTITY_OWNER, identity):
            if await self._is_owner_authentic(row):
                return str(row[1]), str(row[2])
            await self._write(sql.REMOVE_IDENTITY_OWNER, (identity, row[4]))
        return None

    async def owned_identities(self, cluster: str, key: str, node_identity: str) -> frozenset[str]:
        """Returns the identities that have signed in as a node when it had this identity, and belong to it."""
        found = await self._read(sql.OWNED_IDENTITIES, cluster, key, node_identity)
        return frozenset(str(row[0]) for row in found if self._records.has_valid_code(identity_owner_row(row)))

    async def own_identity(
        self, identity: str, cluster: str, key: str, node_identity: str, expected: tuple[str, str] | None = None
    ) -> bool:
        """Makes a node, with the identity that it has, the owner of an identity that signed in as it.

        Returns False if the owner is not `expected`, or exists if None.
        """
        values: Values = (identity, cluster, key, node_identity)
        values = (*values, self._records.sign(signed_identity_owner(values)))
        if expected is None:
            return bool(await self._write(sql.CREATE_IDENTITY_OWNER, values))
        return bool(await self._write(sql.REPLACE_IDENTITY_OWNER, (*values, *expected)))

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
        """Updates `last_seen` of many nodes from (cluster, node, time). Subscribers are not notified."""
        if moments:  # sorted like the batches, so that two replicas cannot deadlock
            rows_by_number = [
                (await self._cluster_number(cluster), key, moment) for cluster, key, moment in sorted(moments)
            ]
            await self._write_many(fleet.SEEN, rows_by_number, repeatable=True)

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
        follows = (
            fleet.update_row(await self._cluster_number(cluster), key, status, timestamp),
            signal(),
            *outbox.enqueue(messages),
        )
        values: Values = (cluster, key, rows.to_json(status))
        if before is None:
            return bool(await self._write(*sql.compose_write(sql.REPORT, values, *follows)))
        if await self._write(*sql.compose_write(sql.REPORT_AFTER, (*values, rows.to_json(before)), *follows)):
            return True
        if await self.node(cluster, key) is None:
            return False
        raise Conflict(f"The status of node {key} was changed since it was read.")

    # Fleet index
    async def cluster_numbers(self) -> dict[str, int]:
        """Returns the number of each cluster in the fleet index."""
        return {cluster: number for number, cluster in await self._read(fleet.SELECT_CLUSTER_NUMBERS)}

    async def fleet(self, query: FleetQuery, now: float) -> tuple[FleetEntry, ...]:
        text, values = fleet.page(query, now)
        return tuple(map(fleet.entry_of, await self._read(text, *values)))

    async def count_fleet(self, query: FleetQuery, now: float) -> int:
        text, values = fleet.count(query, now)
        return int((await self._read(text, *values))[0][0])

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        """Returns the number of nodes by state, version and problems."""
        return tuple(map(fleet.count_of, await self._read(fleet.COUNTS, now)))

    # Sessions
    async def put_session(self, session: UserSession) -> None:
        values = rows.session_values(session)
        await self._write(sql.PUT_SESSION, (*values, self._records.sign(signed_session(values))))

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        """Returns a session that has not expired."""
        found = await self._read(sql.SELECT_SESSION, id, now)
        if not found:
            return None
        with suppress(RecordRefused, RecordUnverifiable):
            # Not read again: without a revision, it is never older.
            return rows.session_of(await self._verified_row(found[0], session_row, sql.SELECT_SESSION))
        return None

    async def confirm_session(self, session: UserSession) -> bool:
        """Writes the user, the refresh token and the time of a check. Returns False if the session has ended."""
        values = rows.session_values(session)
        code = self._records.sign(signed_session(values))
        return bool(await self._write(sql.CONFIRM_SESSION, (values[0], values[1], values[5], values[6], code)))

    async def use_session(self, id: str, used: float) -> None:  # noqa: A002
        await self._write(sql.USE_SESSION, (id, used))

    async def end_session(self, id: str) -> None:  # noqa: A002
        await self._write(sql.END_SESSION, (id,))

    async def sweep_sessions(self, now: float, idle_since: float) -> int:
        """Deletes expired and idle sessions and returns their number."""
        return len(await self._write(sql.SWEEP_SESSIONS, (now, idle_since)))

    # Deliveries
    async def put_delivery(self, delivery: Delivery) -> None:
        """Stores a delivery and deletes every earlier one of the node in the same transaction."""
        await self._write(sql.PUT_DELIVERY, rows.delivery_values(delivery))

    async def fetch_delivery(self, id: str, now: float) -> Delivery | None:  # noqa: A002
        """Returns a delivery that has not expired, and counts the fetch in the same transaction."""
        return next(map(rows.delivery_of, await self._write(sql.FETCH_DELIVERY, (id, now))), None)

    async def revoke_deliveries(self, cluster: str, node: str) -> int:
        return len(await self._write(sql.REVOKE_DELIVERIES, (cluster, node)))

    async def sweep(self, now: float) -> int:
        """Deletes expired deliveries and returns their number."""
        return len(await self._write(sql.SWEEP, (now,)))

    # Audit log
    async def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        """Returns events, newest first. `before` is the sequence number of the last event of the previous page.

        `resource` is a case-insensitive ARM ID and includes all resources below it.
        """
        conditions = {"resource": resource.lower(), "who": caller, "what": what, "before": min(before, LARGEST)}
        filters = {name: value for name, value in conditions.items() if value}
        found = await self._read(sql.audit(tuple(filters)), *filters.values(), clamp_limit(limit))
        return tuple(map(rows.event_of, found))

    async def forget_audit(self, before: float) -> None:
        """Deletes events that are older than this time."""
        await self._write(sql.FORGET_AUDIT, (before,))

    # Change notifications
    def changes(self) -> AsyncIterator[StoreChange]:
        """Yields every node that is written or deleted, on any replica, from this call until the store stops.

        A slow consumer gets only the newest change of a node, or a Resync.
        """
        return self._changes.subscribe()


def clamp_limit(limit: int) -> int:
    """Returns the limit, at least one and at most what a database can count."""
    return min(max(limit, 1), LARGEST - 1)
