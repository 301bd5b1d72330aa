"""Store on PostgreSQL for several replicas: a connection pool, and a connection that listens for changes.

Every write is one statement. Waiting writes with the same statement are sent as one pipeline in one transaction: this
saves round trips, and PostgreSQL commits transactions that notify one at a time. When the server is unreachable,
reads are retried, and so are writes that were certainly not executed. A write whose response was lost fails with an
error that says so. After each reconnection the listener reports that any node may have changed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from aks_flex_node.retry import backoff_delays
from aks_flex_rp.store import migrations, sql
from aks_flex_rp.store.base import Store
from aks_flex_rp.store.changes import Disconnected, NodeDeleted, NodeWritten, Resync
from aks_flex_rp.store.migrations import CHANNEL
from aks_flex_rp.store.model import Conflict, StoreError, StoreUnavailable
from aks_flex_rp.store.postgres_address import tls_failure
from aks_flex_rp.store.rows import storable
from aks_flex_rp.time_limit import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    from aks_flex_rp.store.changes import ChangeBroadcast, NodeChange
    from aks_flex_rp.store.postgres_address import PostgresAddress
    from aks_flex_rp.store.record_authenticator import RecordAuthenticator
    from aks_flex_rp.store.rows import Row, Values

    Execute = Callable[[str, Sequence[Values]], Awaitable[Sequence[Row]]]


MAX_BATCH = 200  # writes per transaction
MAX_TRANSACTIONS = 2  # concurrent transactions: while one is committed, the next is sent


@dataclass(frozen=True)
class PendingWrite:
    values: Values
    done: asyncio.Future[list[Row]]


@dataclass
class GroupCommit:
    execute: Execute
    waiting: dict[str, list[PendingWrite]] = field(default_factory=dict)
    lanes: set[asyncio.Task[None]] = field(default_factory=set)

    async def write(self, text: str, values: Values) -> list[Row]:
        job = PendingWrite(values, asyncio.get_running_loop().create_future())
        self.waiting.setdefault(text, []).append(job)
        if len(self.lanes) < MAX_TRANSACTIONS:
            lane = asyncio.create_task(self._lane(), name="store-writes")
            self.lanes.add(lane)
            lane.add_done_callback(self.lanes.discard)
        return await job.done

    async def finish(self) -> None:
        """Waits until all pending writes are done."""
        while self.lanes:
            await asyncio.wait(set(self.lanes))

    async def _lane(self) -> None:
        while self.waiting:
            text, jobs = self._take()
            try:
                await self._execute_batch(text, jobs)
            except BaseException as error:
                for job in jobs:
                    complete_write(job, StoreUnavailable(f"The write was aborted: {error!r}.", executed=True))
                raise

    def _take(self) -> tuple[str, list[PendingWrite]]:
        """Takes the next batch, sorted by key so that concurrent transactions do not deadlock."""
        text, jobs = next(iter(self.waiting.items()))
        del self.waiting[text]
        if len(jobs) > MAX_BATCH:
            self.waiting[text] = jobs[MAX_BATCH:]
        return text, sorted(jobs[:MAX_BATCH], key=lambda job: job.values[:2])

    async def _execute_batch(self, text: str, jobs: list[PendingWrite]) -> None:
        """Executes the writes together, or one by one if PostgreSQL rejects the batch, so that only the faulty one
        fails.
        """
        try:
            found = await self.execute(text, [(*job.values, index) for index, job in enumerate(jobs)])
        except (asyncpg.PostgresError, ValueError) as error:
            if len(jobs) == 1:
                complete_write(jobs[0], error)
            for job in jobs if len(jobs) > 1 else ():
                await self._execute_batch(text, [job])
        except Exception as error:
            for job in jobs:
                complete_write(job, error)
        else:
            distribute_rows(jobs, found)


def distribute_rows(jobs: list[PendingWrite], found: Sequence[Row]) -> None:
    """Distributes the returned rows to their writes."""
    own: list[list[Row]] = [[] for _ in jobs]
    for row in found:
        own[row[0]].append(tuple(row)[1:])
    for job, rows in zip(jobs, own, strict=True):
        complete_write(job, rows)


def complete_write(job: PendingWrite, outcome: list[Row] | Exception) -> None:
    """Completes a write, unless its caller was cancelled."""
    if job.done.done():
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)


ALIVE_SECONDS = 10  # interval of checks on an idle connection
VALUE_TAKEN = "Another writer has taken this value."


@dataclass
class ChangeListener:
    connect: Callable[[], Awaitable[Connection]]
    broadcast: ChangeBroadcast
    task: asyncio.Task[None] | None = None
    connection: Connection | None = None

    async def start(self) -> None:
        self.connection = connection = await self._listen()
        self.task = asyncio.create_task(self._run(connection), name="store-listener")

    async def stop(self) -> None:
        if self.task:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task
        if self.connection:  # a task that is cancelled before it starts does not close its connection
            self.connection.terminate()

    async def _run(self, connection: Connection) -> None:
        while True:
            try:
                await wait_until_lost(connection)
            finally:
                connection.terminate()
            self.broadcast.publish([Disconnected()])
            connection = await self._reconnect()
            self.broadcast.publish([Resync()])

    async def _reconnect(self) -> Connection:
        for pause in backoff_delays():
            with suppress(Exception):  # any error is retried
                return await self._listen()
            await asyncio.sleep(pause)
        raise AssertionError("The backoff never ends.")

    async def _listen(self) -> Connection:
        connection = await self.connect()
        try:
            await connection.add_listener(CHANNEL, self._on_notification)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _on_notification(self, connection: object, process: int, channel: str, payload: object) -> None:  # noqa: ARG002
        cluster, node, version = json.loads(str(payload))
        change = NodeWritten(cluster, node, version) if version else NodeDeleted(cluster, node)
        self.broadcast.publish([change])


async def wait_until_lost(connection: Connection) -> None:
    """Waits until the connection is lost. Checks it periodically, because it may be lost without notice."""
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_close(_: object) -> None:
        if not lost.done():
            lost.set_result(None)

    connection.add_termination_listener(on_close)
    while not connection.is_closed():
        # Not wait_for, which would swallow a cancellation at the moment when the connection ends.
        await asyncio.wait([lost], timeout=ALIVE_SECONDS)
        if lost.done():
            return
        try:
            await connection.execute("SELECT 1", timeout=ALIVE_SECONDS)
        except Exception:  # any error means that the connection is unusable
            return


T = TypeVar("T")

MIGRATION_LOCK = 0x61666E  # an arbitrary number, the same in all replicas
COMMAND_SECONDS = 10.0  # a command takes milliseconds, but a broken connection may never respond
HEALTH_SECONDS = 2.0
CLOSE_SECONDS = 10.0
PROBE_SECONDS = 0.1  # between attempts to connect to a server that refuses connections

# Errors after which the statement was certainly not executed: deadlock, standby, out of memory, disk or connections.
NOT_EXECUTED = (
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
)
# Errors of a lost connection, after which it is unknown whether the statement was executed.
CONNECTION_LOST = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class NotSent(Exception):  # noqa: N818 - internal
    """Raised when no connection was available, so nothing was sent."""


class PostgresStore(Store):
    def __init__(
        self, address: PostgresAddress, records: RecordAuthenticator, *, connections: int = 10, timeout: float = 10.0
    ) -> None:
        """Creates the store. `timeout` is the time in seconds that a request waits for an unreachable server."""
        super().__init__(records)
        self._address = address
        self._connections = connections
        self._patience = timeout
        self._pool: asyncpg.Pool | None = None
        self._is_lost = False  # the last attempt to get a connection failed
        self._probe = asyncio.Lock()
        self._batches = GroupCommit(self._execute)
        self._listener = ChangeListener(self._connect, self._changes)

    async def start(self) -> None:
        try:
            settings = await self._with_retry(self._prepare, repeatable=True)
            self._pool = await self._make_pool(settings)
            await self._with_retry(self._listener.start, repeatable=True)
        except (asyncpg.PostgresError, ValueError) as error:
            hint = (
                "Check the address of the database, the user and the password, and that the user may create tables."
            )
            raise StoreError("database-error", f"Cannot use the PostgreSQL database: {error}.", hint) from error

    async def stop(self) -> None:
        await self._listener.stop()
        await self._batches.finish()
        pool, self._pool = self._pool, None
        if pool:
            with suppress(asyncio.TimeoutError):
                await within(CLOSE_SECONDS, pool.close())
            pool.terminate()
        self._changes.end()

    async def healthy(self) -> bool:
        try:
            await within(HEALTH_SECONDS, self._once(lambda connection: connection.fetch("SELECT 1")))
        except (NotSent, StoreUnavailable, *NOT_EXECUTED, *CONNECTION_LOST):
            return False
        return True

    async def _read(self, text: str, *values: object) -> Sequence[Row]:
        parameters = storable(values)
        return await self._do(lambda connection: connection.fetch(text, *parameters), repeatable=True)

    async def _write(
        self,
        write: sql.WriteStatement,
        values: Values,
        change: NodeChange | None = None,
    ) -> Sequence[Row]:
        """Executes a write. A database trigger notifies all replicas of the change in the same transaction; this one
        does not wait for that, so that its next request sees what it wrote.
        """
        if self._pool is None:
            raise StoreUnavailable("The store is not running.")
        try:
            decided = await self._batches.write(sql.single_statement(write, len(values)), storable(values))
        except asyncpg.UniqueViolationError:
            raise Conflict(VALUE_TAKEN) from None
        if decided and change:
            self._changes.publish([change])
        return decided

    async def _execute(self, text: str, values: Sequence[Values]) -> Sequence[Row]:
        return await self._do(lambda connection: connection.fetchmany(text, values))

    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:
        parameters = [storable(one) for one in values]
        try:
            await self._do(lambda connection: connection.executemany(text, parameters), repeatable=repeatable)
        except asyncpg.UniqueViolationError:
            raise Conflict(VALUE_TAKEN) from None

    async def _do(self, act: Callable[[PoolConnectionProxy], Awaitable[T]], *, repeatable: bool = False) -> T:
        return await self._with_retry(lambda: self._once(act), repeatable=repeatable)

    async def _once(self, act: Callable[[PoolConnectionProxy], Awaitable[T]]) -> T:
        async with self._connection() as connection:
            return await act(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[PoolConnectionProxy]:
        if self._pool is None:
            raise StoreUnavailable("The store is not running.")
        pool = self._pool
        try:
            if self._is_lost:
                await within(self._patience, self._wait_until_found(pool))
            connection = await pool.acquire(timeout=self._patience)
        except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
            self._is_lost = True
            raise NotSent from error
        try:
            yield connection
        finally:
            with suppress(*CONNECTION_LOST):  # the statement is done; the pool discards a broken connection
                await pool.release(connection)

    async def _wait_until_found(self, pool: asyncpg.Pool) -> None:
        """Tries to connect to a server that refused a connection, in one request at a time: a server that shuts down
        waits for every attempt, and many clients would never let it end.
        """
        async with self._probe:
            if self._is_lost:
                await asyncio.sleep(PROBE_SECONDS)
                async with pool.acquire():
                    self._is_lost = False

    async def _with_retry(self, act: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """Retries until success or timeout. Only repeatable operations are retried if they may have been executed."""
        end = asyncio.get_running_loop().time() + self._patience
        for pause in backoff_delays():
            try:
                return await act()
            except NotSent as error:
                cause = error.__cause__
            except NOT_EXECUTED as error:
                cause = error
            except CONNECTION_LOST as error:
                if isinstance(error, ValueError):  # invalid arguments, in asyncpg
                    raise
                if not repeatable:
                    raise response_lost(error) from error
                cause = error
            if asyncio.get_running_loop().time() + pause > end:
                raise unreachable(cause) from cause
            await asyncio.sleep(pause)
        raise AssertionError("The backoff never ends.")

    async def _connect(self, seconds: float | None = COMMAND_SECONDS) -> asyncpg.Connection:
        try:
            return await asyncpg.connect(
                **self._address.connect_options(), timeout=self._patience, command_timeout=seconds
            )
        except OSError as error:
            raise tls_failure(error) or error from error

    async def _prepare(self) -> dict[str, str]:
        """Migrates the schema and returns the settings that make commits durable."""
        connection = await self._connect(None)  # a migration of large tables may take long
        try:
            await migrate(connection)
            is_asynchronous = await connection.fetchval("SHOW synchronous_commit") == "off"
            return {"synchronous_commit": "on"} if is_asynchronous else {}
        finally:
            await connection.close(timeout=CLOSE_SECONDS)

    async def _make_pool(self, settings: dict[str, str]) -> asyncpg.Pool:
        """Creates the pool without connections. Each is opened on first use, and again after it was lost."""
        return await asyncpg.create_pool(
            **self._address.connect_options(),
            min_size=0,
            max_size=self._connections,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": "aks-flex-rp", **settings},
            reset=no_reset,
        )


async def no_reset(_: object) -> None:
    """Skips the reset of a session, which costs a round trip: no statement leaves any state in it."""


def unreachable(cause: BaseException | None) -> StoreUnavailable:
    hint = "Check that the server is running and reachable from this machine."
    return StoreUnavailable(f"Cannot reach PostgreSQL: {describe_cause(cause)}.", hint)


def response_lost(cause: BaseException) -> StoreUnavailable:
    message = f"The connection to PostgreSQL was lost before it responded: {describe_cause(cause)}."
    return StoreUnavailable(
        message, "The write may have been executed. Read the current state, then try again.", executed=True
    )


def describe_cause(cause: BaseException | None) -> str:
    if isinstance(cause, asyncio.TimeoutError | TimeoutError) and not str(cause):
        return "the server did not respond in time"
    return str(cause).rstrip(".") or type(cause).__name__


async def migrate(
    connection: asyncpg.Connection, steps: tuple[migrations.Migration, ...] = migrations.MIGRATIONS
) -> None:
    """Runs each migration in a transaction, with a lock that other replicas wait for."""
    step: migrations.Migration | None = steps[0]
    while step:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(migrations.VERSION_TABLE)
            version = await connection.fetchval(migrations.READ_VERSION)
            step = migrations.next_after(version, steps)
            if step:
                for statement in (*step.postgres_before, *step.statements, *step.postgres_after):
                    await connection.execute(statement)
                await connection.execute(migrations.WRITE_VERSION, step.version)
