"""What both stores do alike: every method of the protocol, said in three words that each database carries out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from aks_flex_node.rp.store import fleet, outbox, rows, sessions, sql
from aks_flex_node.rp.store.changes import Broadcast
from aks_flex_node.rp.store.mending import MendedFleet
from aks_flex_node.rp.store.outbox import Outbox
from aks_flex_node.rp.store.silences import NotedSilences
from aks_flex_node.rp.store.store import Cluster, Conflict, Delivery, Document, Event, Node, Page, Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_node.rp.store.changes import Change
    from aks_flex_node.rp.store.fleet import Count, Entry, FleetQuery
    from aks_flex_node.rp.store.outbox import Message
    from aks_flex_node.rp.store.rows import Row, Values
    from aks_flex_node.rp.store.sessions import Session

LARGEST = 2**63 - 1
FORGET_DELIVERY = sql.Follow(lambda _: sql.FORGET_DELIVERY)


class Tables(Outbox, NotedSilences, MendedFleet, ABC):
    def __init__(self) -> None:
        self._changes = Broadcast()
        self._places: dict[str, int] = {}  # once given, a place stays

    @abstractmethod
    async def _read(self, text: str, *values: object) -> Sequence[Row]: ...

    @abstractmethod
    async def _write(self, write: sql.Write, values: Values, change: Change | None = None) -> Sequence[Row]:
        """What the deciding statement returned. All of the write is done when it returned a row, and else nothing.

        Whoever waits is told of the change when it is on the disk, also when the caller has gone meanwhile.
        """
        ...

    @abstractmethod
    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:
        """One statement with many rows of parameters, all or nothing; a repeatable one may be done twice."""
        ...

    # clusters
    async def put_cluster(self, cluster: Cluster, expected: int | None) -> None:
        values = rows.cluster_values(cluster)
        if expected is None:
            done = await self._write(sql.CREATE_CLUSTER, values)
        else:
            done = await self._write(sql.REPLACE_CLUSTER, (*values, expected))
        if not done:
            raise Conflict(f"The cluster {cluster.id} is not as it was read.")

    async def cluster(self, key: str) -> Cluster | None:
        return next(map(rows.cluster_of, await self._read(sql.CLUSTER, key)), None)

    async def clusters(self) -> tuple[Cluster, ...]:
        return tuple(map(rows.cluster_of, await self._read(sql.CLUSTERS)))

    async def delete_cluster(self, key: str) -> bool:
        if await self._write(sql.DELETE_CLUSTER, (key,)):
            return True
        if await self.cluster(key) is None:
            return False
        raise Conflict(f"The cluster {key} still has nodes.")

    # nodes
    async def put_node(
        self,
        node: Node,
        expected: str | None,
        events: Sequence[Event] = (),
        messages: Sequence[Message] = (),
        *,
        retire: bool = False,
    ) -> None:
        text = sql.REPLACE_NODE
        last: Values = (expected, node.revision)
        if expected is None:
            text, last = sql.CREATE_NODE, (rows.text_of(node.status),)
        place = await self._place(node.cluster)
        more = (*([FORGET_DELIVERY] if retire else ()), *_recorded(events), *outbox.enqueue(messages))
        follows = (fleet.enlist(place, node), *more)
        write, values = sql.composed(text, (*rows.node_values(node), *last), *follows)
        if not await self._write(write, values, (node.cluster, node.key, node.version)):
            raise Conflict(f"The node {node.name} is not as it was read.")

    async def node(self, cluster: str, key: str) -> Node | None:
        return next(map(rows.node_of, await self._read(sql.NODE, cluster, key)), None)

    async def nodes(self, cluster: str, after: str = "", limit: int = 100) -> Page:
        limit = bounded(limit)
        found = await self._read(sql.NODES, cluster, after, limit + 1)
        nodes = tuple(map(rows.node_of, found[:limit]))
        return Page(nodes, nodes[-1].key if len(found) > limit else None)

    async def count_nodes(self) -> int:
        return int((await self._read(sql.COUNT_NODES))[0][0])

    async def delete_node(
        self,
        cluster: str,
        key: str,
        expected: str | None,
        events: Sequence[Event] = (),
        messages: Sequence[Message] = (),
    ) -> bool:
        more = (FORGET_DELIVERY, *_recorded(events), *outbox.enqueue(messages))
        follows = (fleet.strike(await self._place(cluster), key), *more)
        write, values = sql.composed(sql.DELETE_NODE, (cluster, key, expected or ""), *follows)
        if await self._write(write, values, (cluster, key, 0)):
            return True
        if await self.node(cluster, key) is None:
            return False
        raise Conflict(f"The node {key} is not as it was read.")

    async def trace(self, cluster: str, key: str) -> Trace:
        found = await self._read(sql.TRACE, cluster, key)
        return Trace(int(found[0][0]), str(found[0][1])) if found else Trace()

    async def seen(self, moments: Sequence[tuple[str, str, float]]) -> None:
        if moments:  # in one order everywhere, that of the batches, so that two replicas never wait for each other
            placed = [(await self._place(cluster), key, moment) for cluster, key, moment in sorted(moments)]
            await self._write_many(fleet.SEEN, placed, repeatable=True)

    async def report(
        self,
        cluster: str,
        key: str,
        status: Document,
        moment: float,
        messages: Sequence[Message] = (),
        before: Document | None = None,
    ) -> bool:
        follows = (fleet.hear(await self._place(cluster), key, status, moment), *outbox.enqueue(messages))
        said: Values = (cluster, key, rows.text_of(status))
        if before is None:
            return bool(await self._write(*sql.composed(sql.REPORT, said, *follows)))
        if await self._write(*sql.composed(sql.REPORT_AFTER, (*said, rows.text_of(before)), *follows)):
            return True
        if await self.node(cluster, key) is None:
            return False
        raise Conflict(f"The node {key} has said something else meanwhile.")

    # the fleet
    async def places(self) -> dict[str, int]:
        return {cluster: number for number, cluster in await self._read(fleet.PLACES)}

    async def fleet(self, asked: FleetQuery, now: float) -> tuple[Entry, ...]:
        text, values = fleet.page(asked, now)
        return tuple(map(fleet.entry_of, await self._read(text, *values)))

    async def count_fleet(self, asked: FleetQuery, now: float) -> int:
        text, values = fleet.count(asked, now)
        return int((await self._read(text, *values))[0][0])

    async def fleet_counts(self, now: float) -> tuple[Count, ...]:
        return tuple(map(fleet.count_of, await self._read(fleet.COUNTS, now)))

    async def _place(self, cluster: str) -> int:
        """The number of a cluster. Two who make one at the same moment may both want the same number: one gets none,
        and looks again."""
        while (known := self._places.get(cluster)) is None:
            found = await self._read(fleet.PLACE, cluster) or await self._write(fleet.MAKE_PLACE, (cluster,))
            if found:
                self._places[cluster] = int(found[0][0])
        return known

    # sessions
    async def put_session(self, session: Session) -> None:
        await self._write(sessions.PUT, sessions.values(session))

    async def session(self, id: str, now: float) -> Session | None:  # noqa: A002
        return next(map(sessions.session_of, await self._read(sessions.SESSION, id, now)), None)

    async def use_session(self, id: str, used: float) -> None:  # noqa: A002
        await self._write(sessions.USE, (id, used))

    async def end_session(self, id: str) -> None:  # noqa: A002
        await self._write(sessions.END, (id,))

    async def sweep_sessions(self, now: float, idle_since: float) -> int:
        return len(await self._write(sessions.SWEEP, (now, idle_since)))

    # deliveries
    async def put_delivery(self, delivery: Delivery) -> None:
        await self._write(sql.PUT_DELIVERY, rows.delivery_values(delivery))

    async def fetch_delivery(self, id: str, now: float) -> Delivery | None:  # noqa: A002
        return next(map(rows.delivery_of, await self._write(sql.FETCH_DELIVERY, (id, now))), None)

    async def revoke_deliveries(self, cluster: str, node: str) -> int:
        return len(await self._write(sql.REVOKE_DELIVERIES, (cluster, node)))

    async def sweep(self, now: float) -> int:
        return len(await self._write(sql.SWEEP, (now,)))

    # audit
    async def record(self, *events: Event) -> None:
        if events:
            await self._write_many(sql.RECORD, [rows.event_values(event) for event in events])

    async def audit(
        self, *, resource: str = "", who: str = "", what: str = "", before: int = 0, limit: int = 100
    ) -> tuple[Event, ...]:
        asked = {"resource": resource.lower(), "who": who, "what": what, "before": min(before, LARGEST)}
        filters = {name: value for name, value in asked.items() if value}
        found = await self._read(sql.audit(tuple(filters)), *filters.values(), bounded(limit))
        return tuple(map(rows.event_of, found))

    async def forget_audit(self, before: float) -> None:
        await self._write(sql.FORGET_AUDIT, (before,))

    # waiting
    def changes(self) -> AsyncIterator[Change]:
        return self._changes.subscribe()


def bounded(limit: int) -> int:
    """At least one, and no more than a database can count."""
    return min(max(limit, 1), LARGEST - 1)


def _recorded(events: Sequence[Event]) -> tuple[sql.Follow, ...]:
    """The audit of a write, in the same step."""
    if not events:
        return ()
    values = tuple(value for event in events for value in rows.event_values(event))
    return (sql.Follow(lambda first: sql.record_after(first, len(events)), values),)
