"""Implementation of the Store protocol for both databases, on three primitives that each database implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_rp.node_keys import parse_tombstone_identity
from aks_flex_rp.store import fleet, outbox, rows, sql
from aks_flex_rp.store.authenticated_rows import AuthenticatedRows, authentic_records, verified_records
from aks_flex_rp.store.changes import ChangeBroadcast, NodeDeleted, NodeWritten
from aks_flex_rp.store.enrolments import SqlEnrolments
from aks_flex_rp.store.fleet_repair import FleetRepair
from aks_flex_rp.store.heartbeat import SqlHeartbeats
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
from aks_flex_rp.store.outbox import SqlOutbox
from aks_flex_rp.store.pools import SqlPools
from aks_flex_rp.store.record_authenticator import (
    escaped,
    identity_owner_row,
    is_deleted,
    node_row,
    session_row,
    signed_cluster,
    signed_identity_owner,
    signed_node,
    signed_session,
    signed_tombstone,
)
from aks_flex_rp.store.rollout_overview import SqlRolloutOverview
from aks_flex_rp.store.rollouts import signal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_rp.store.changes import NodeChange, StoreChange
    from aks_flex_rp.store.fleet import FleetCount, FleetEntry, FleetQuery
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.record_authenticator import RecordAuthenticator
    from aks_flex_rp.store.rows import Row, Values

LARGEST = 2**63 - 1
FORGET_DELIVERY = sql.FollowStatement(lambda _: sql.FORGET_DELIVERY)
FORGET_MACHINE = sql.FollowStatement(lambda _: sql.FORGET_MACHINE)


class SqlStore(
    SqlPools, SqlEnrolments, SqlRolloutOverview, AuthenticatedRows, SqlOutbox, SqlHeartbeats, FleetRepair, ABC
):
    def __init__(self, records: RecordAuthenticator) -> None:
        super().__init__(records)
        self._changes = ChangeBroadcast()
        self._cluster_numbers: dict[str, int] = {}  # a number never changes

    @abstractmethod
    async def _read(self, text: str, *values: object) -> Sequence[Row]: ...

    @abstractmethod
    async def _write(
        self, write: sql.WriteStatement, values: Values, change: NodeChange | None = None
    ) -> Sequence[Row]:
        """Executes a write and returns the rows of its deciding statement. Without a row, nothing is changed.

        Subscribers are notified when the change is durable, even if the caller was cancelled.
        """
        ...

    @abstractmethod
    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:
        """Executes one statement with many parameter rows, all or nothing. A repeatable one may be executed twice."""
        ...

    # Clusters
    async def put_cluster(self, cluster: Cluster, expected: int | None) -> None:
        values = rows.cluster_values(cluster)
        values = (*values, self._records.sign(signed_cluster(values)))
        if expected is None:
            done = await self._write(sql.CREATE_CLUSTER, values)
        else:
            done = await self._write(sql.REPLACE_CLUSTER, (*values, expected))
        if not done:
            raise Conflict(f"The cluster {cluster.id} was changed since it was read.")

    async def cluster(self, key: str) -> Cluster | None:
        found = await self._read(sql.CLUSTER, key)
        return await self._verified_cluster(found[0]) if found else None

    async def clusters(self) -> tuple[Cluster, ...]:
        found = await self._read(sql.CLUSTERS)
        return await authentic_records(self._verified_cluster, found)

    async def cluster_keys(self) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in await self._read(sql.CLUSTERS))

    async def delete_cluster(self, key: str) -> bool:
        if await self._write(sql.DELETE_CLUSTER, (key,)):
            return True
        if not await self._read(sql.CLUSTER, key):
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
        is_new = expected is None
        text, first = (sql.CREATE_NODE, rows.to_json(node.status)) if is_new else (sql.REPLACE_NODE, expected)
        read = 0 if is_new else node.revision
        known = read or await self._revision(node.cluster, node.key)
        # If the row of an earlier node was deleted, services may remember its revision.
        revision = known + 1 if known else self._records.new_revision(node.cluster, node.key)
        columns = rows.node_values(node)
        last: Values = (first, self._records.sign(signed_node(columns, revision)), revision)
        number = await self._cluster_number(node.cluster)
        more = (*([FORGET_DELIVERY] if retire else ()), *_recorded(events), *outbox.enqueue(messages))
        follows = (fleet.upsert_row(number, node), signal(override), *more)
        if decided:
            text, last = sql.REPLACE_NODE_IN_ROLLOUT, (*last, *decided)
        write, values = sql.compose_write(text, (*columns, *last), *follows)
        if not await self._write(write, values, NodeWritten(node.cluster, node.key, node.version)):
            raise Conflict(f"The node {node.name} was changed since it was read.")

    async def node(self, cluster: str, key: str) -> Node | None:
        found = await self._read(sql.NODE, cluster, key)
        return await self._verified_node(found[0]) if found else None

    async def _revision(self, cluster: str, key: str) -> int:
        """Returns the revision of a row, also of a deleted node; 0 if there is none."""
        found = await self._read(sql.NODE_REVISION, cluster, key)
        if found and not isinstance(found[0][0], int):
            raise RecordRefused(f"node {cluster}/{key}", "its revision is not a number", key)
        return int(found[0][0]) if found else 0

    async def nodes(self, cluster: str, after: str = "", limit: int = 100) -> NodePage:
        limit = clamp_limit(limit)
        found = await self._read(sql.NODES, cluster, after, limit + 1)
        nodes, refused = await verified_records(self._verified_node, found[:limit])
        last = found[limit - 1][1] if len(found) > limit else None
        following = last if isinstance(last, str) else None  # SQLite sorts other types after text
        return NodePage(
            nodes, following, tuple(RefusedNode(str(row[1]), escaped(row[1]), error) for row, error in refused)
        )

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
        more = (FORGET_DELIVERY, FORGET_MACHINE, signal(), *_recorded(events), *outbox.enqueue(messages))
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
        found = await self._read(sql.SELECT_SIGNED_NODE, cluster, key)
        row = await self._verified(found[0], node_row, sql.SELECT_SIGNED_NODE) if found else None
        if row is None:
            return LastKnownNode()
        if is_deleted(row[13]):
            identity, keys = parse_tombstone_identity(row[10])
            return LastKnownNode(row[3], identity, deleted=True, keys=keys)
        return LastKnownNode(row[3], row[10], keys=rows.keys_of(row[9]))

    # Identities of nodes
    async def nodes_with_identity(self, identity: str) -> tuple[tuple[str, str, str], ...]:
        found = await self._read(sql.NODES_WITH_IDENTITY, identity, identity.partition("@")[0])
        return tuple((str(cluster), str(name), str(text)) for cluster, name, text in found)

    async def identity_owner(self, identity: str) -> tuple[str, str] | None:
        for row in await self._read(sql.IDENTITY_OWNER, identity):
            if await self._is_owner_authentic(row):
                return str(row[1]), str(row[2])
            await self._write(sql.REMOVE_IDENTITY_OWNER, (identity, row[4]))
        return None

    async def owned_identities(self, cluster: str, key: str, node_identity: str) -> frozenset[str]:
        found = await self._read(sql.OWNED_IDENTITIES, cluster, key, node_identity)
        return frozenset(str(row[0]) for row in found if self._records.has_valid_code(identity_owner_row(row)))

    async def own_identity(
        self, identity: str, cluster: str, key: str, node_identity: str, expected: tuple[str, str] | None = None
    ) -> bool:
        values: Values = (identity, cluster, key, node_identity)
        values = (*values, self._records.sign(signed_identity_owner(values)))
        if expected is None:
            return bool(await self._write(sql.CREATE_IDENTITY_OWNER, values))
        return bool(await self._write(sql.REPLACE_IDENTITY_OWNER, (*values, *expected)))

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
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
        return {cluster: number for number, cluster in await self._read(fleet.SELECT_CLUSTER_NUMBERS)}

    async def fleet(self, query: FleetQuery, now: float) -> tuple[FleetEntry, ...]:
        text, values = fleet.page(query, now)
        return tuple(map(fleet.entry_of, await self._read(text, *values)))

    async def count_fleet(self, query: FleetQuery, now: float) -> int:
        text, values = fleet.count(query, now)
        return int((await self._read(text, *values))[0][0])

    async def fleet_counts(self, now: float) -> tuple[FleetCount, ...]:
        return tuple(map(fleet.count_of, await self._read(fleet.COUNTS, now)))

    async def _cluster_number(self, cluster: str) -> int:
        """Returns the number of a cluster. If two processes create the same number, one of them retries."""
        while (known := self._cluster_numbers.get(cluster)) is None:
            found = await self._read(fleet.SELECT_CLUSTER_NUMBER, cluster) or await self._write(
                fleet.INSERT_CLUSTER_NUMBER, (cluster,)
            )
            if found:
                self._cluster_numbers[cluster] = int(found[0][0])
        return known

    # Sessions
    async def put_session(self, session: UserSession) -> None:
        values = rows.session_values(session)
        await self._write(sql.PUT_SESSION, (*values, self._records.sign(signed_session(values))))

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        found = await self._read(sql.SELECT_SESSION, id, now)
        if not found:
            return None
        with suppress(RecordRefused, RecordUnverifiable):
            # Not read again: without a revision, it is never older.
            return rows.session_of(await self._verified(found[0], session_row, sql.SELECT_SESSION))
        return None

    async def confirm_session(self, session: UserSession) -> bool:
        values = rows.session_values(session)
        code = self._records.sign(signed_session(values))
        return bool(await self._write(sql.CONFIRM_SESSION, (values[0], values[1], values[5], values[6], code)))

    async def use_session(self, id: str, used: float) -> None:  # noqa: A002
        await self._write(sql.USE_SESSION, (id, used))

    async def end_session(self, id: str) -> None:  # noqa: A002
        await self._write(sql.END_SESSION, (id,))

    async def sweep_sessions(self, now: float, idle_since: float) -> int:
        return len(await self._write(sql.SWEEP_SESSIONS, (now, idle_since)))

    # Deliveries
    async def put_delivery(self, delivery: Delivery) -> None:
        await self._write(sql.PUT_DELIVERY, rows.delivery_values(delivery))

    async def fetch_delivery(self, id: str, now: float) -> Delivery | None:  # noqa: A002
        return next(map(rows.delivery_of, await self._write(sql.FETCH_DELIVERY, (id, now))), None)

    async def revoke_deliveries(self, cluster: str, node: str) -> int:
        return len(await self._write(sql.REVOKE_DELIVERIES, (cluster, node)))

    async def sweep(self, now: float) -> int:
        return len(await self._write(sql.SWEEP, (now,)))

    # Audit log
    async def record(self, *events: AuditEvent) -> None:
        if events:
            await self._write_many(sql.INSERT_EVENT, [rows.event_values(event) for event in events])

    async def audit(
        self, *, resource: str = "", caller: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[AuditEvent, ...]:
        conditions = {"resource": resource.lower(), "who": caller, "what": what, "before": min(before, LARGEST)}
        filters = {name: value for name, value in conditions.items() if value}
        found = await self._read(sql.audit(tuple(filters)), *filters.values(), clamp_limit(limit))
        return tuple(map(rows.event_of, found))

    async def forget_audit(self, before: float) -> None:
        await self._write(sql.FORGET_AUDIT, (before,))

    # Change notifications
    def changes(self) -> AsyncIterator[StoreChange]:
        return self._changes.subscribe()


def clamp_limit(limit: int) -> int:
    """Returns the limit, at least one and at most what a database can count."""
    return min(max(limit, 1), LARGEST - 1)


def _recorded(events: Sequence[AuditEvent]) -> tuple[sql.FollowStatement, ...]:
    """Returns the statement that inserts the audit events of a write in the same transaction."""
    if not events:
        return ()
    return (sql.recorded([rows.event_values(event) for event in events]),)
