"""The store for many replicas: PostgreSQL through a pool of connections.

Every write is one statement; those that wait at the same moment are one transaction (see `batches`). When the server
goes away, reads are tried again, and so is a write that certainly was not executed; one whose answer was lost fails
with an error that says so.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from aks_flex_node.rp.store import migrations, sql
from aks_flex_node.rp.store.backoff import pauses
from aks_flex_node.rp.store.batches import Batches
from aks_flex_node.rp.store.errors import StoreError, Unavailable
from aks_flex_node.rp.store.listening import Listener
from aks_flex_node.rp.store.rows import storable
from aks_flex_node.rp.store.tables import Tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from aks_flex_node.rp.store.changes import Change
    from aks_flex_node.rp.store.rows import Row, Values

T = TypeVar("T")

MIGRATION_LOCK = 0x61666E  # any number, if only it is everywhere the same
COMMAND_SECONDS = 10.0  # for what takes milliseconds: a connection that broke in a bad moment may answer never
HEALTH_SECONDS = 2.0
CLOSE_SECONDS = 10.0

# The server says that it did nothing: a deadlock, a standby, its memory, disk or connections at an end.
REFUSED = (
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
)
# A connection that ends says so in many ways, and none of them tells what became of the statement.
LOST = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class NotBegun(Exception):  # noqa: N818 - seen in this module alone
    """There was no connection to be had: nothing was sent."""


class PostgresStore(Tables):
    def __init__(self, dsn: str, *, connections: int = 10, patience: float = 10.0) -> None:
        """`patience`: for how many seconds a request waits for a server that is away."""
        super().__init__()
        self._dsn = dsn
        self._connections = connections
        self._patience = patience
        self._pool: asyncpg.Pool | None = None
        self._batches = Batches(self._execute)
        self._listener = Listener(self._connect, self._changes)

    async def start(self) -> None:
        try:
            settings = await self._patiently(self._prepare, repeatable=True)
            self._pool = await self._make_pool(settings)
            await self._patiently(self._listener.start, repeatable=True)
        except (asyncpg.PostgresError, ValueError) as error:
            hint = "Check the address of the database, the user and the password, and that the user may make tables."
            raise StoreError("store-refused", f"PostgreSQL cannot be used: {error}.", hint) from error

    async def stop(self) -> None:
        await self._listener.stop()
        await self._batches.finish()
        pool, self._pool = self._pool, None
        if pool:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(pool.close(), CLOSE_SECONDS)
            pool.terminate()
        self._changes.end()

    async def healthy(self) -> bool:
        try:
            await asyncio.wait_for(self._once(lambda connection: connection.fetch("SELECT 1")), HEALTH_SECONDS)
        except (NotBegun, Unavailable, *REFUSED, *LOST):
            return False
        return True

    async def _read(self, text: str, *values: object) -> Sequence[Row]:
        parameters = storable(values)
        return await self._do(lambda connection: connection.fetch(text, *parameters), repeatable=True)

    async def _write(self, write: sql.Write, values: Values, change: Change | None = None) -> Sequence[Row]:  # noqa: ARG002
        """A trigger tells of the change, in the transaction of the write itself."""
        if self._pool is None:
            raise Unavailable("The store is not running.")
        return await self._batches.write(sql.single(write, len(values)), storable(values))

    async def _execute(self, text: str, values: Sequence[Values]) -> Sequence[Row]:
        return await self._do(lambda connection: connection.fetchmany(text, values))

    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:
        parameters = [storable(one) for one in values]
        await self._do(lambda connection: connection.executemany(text, parameters), repeatable=repeatable)

    async def _do(self, act: Callable[[PoolConnectionProxy], Awaitable[T]], *, repeatable: bool = False) -> T:
        return await self._patiently(lambda: self._once(act), repeatable=repeatable)

    async def _once(self, act: Callable[[PoolConnectionProxy], Awaitable[T]]) -> T:
        async with self._borrowed() as connection:
            return await act(connection)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[PoolConnectionProxy]:
        if self._pool is None:
            raise Unavailable("The store is not running.")
        pool = self._pool
        try:
            connection = await pool.acquire(timeout=self._patience)
        except (asyncpg.PostgresError, *LOST) as error:
            raise NotBegun from error
        try:
            yield connection
        finally:
            with suppress(*LOST):  # what was done was done; the pool throws a broken connection away
                await pool.release(connection)

    async def _patiently(self, act: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """Until it works, or patience ends. What may have been executed is done again only when that does no harm."""
        end = asyncio.get_running_loop().time() + self._patience
        for pause in pauses():
            try:
                return await act()
            except NotBegun as error:
                cause = error.__cause__
            except REFUSED as error:
                cause = error
            except LOST as error:
                if isinstance(error, ValueError):  # asyncpg's word for arguments that are wrong
                    raise
                if not repeatable:
                    raise answer_lost(error) from error
                cause = error
            if asyncio.get_running_loop().time() + pause > end:
                raise away(cause) from cause
            await asyncio.sleep(pause)
        raise AssertionError("There is always another pause.")

    async def _connect(self, seconds: float | None = COMMAND_SECONDS) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn, timeout=self._patience, command_timeout=seconds)

    async def _prepare(self) -> dict[str, str]:
        """The tables as they should be, and what connections need so that a commit is on the disk when it returns."""
        connection = await self._connect(None)  # a step over large tables takes its time
        try:
            await migrate(connection)
            careless = await connection.fetchval("SHOW synchronous_commit") == "off"
            return {"synchronous_commit": "on"} if careless else {}
        finally:
            await connection.close(timeout=CLOSE_SECONDS)

    async def _make_pool(self, settings: dict[str, str]) -> asyncpg.Pool:
        """Without a connection yet: each is made when it is first needed, and again when it was lost."""
        return await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._connections,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": "aks-flex-rp", **settings},
            reset=leave_as_it_is,
        )


async def leave_as_it_is(_: object) -> None:
    """No statement here leaves anything behind in its session, and to reset it costs a round trip each time."""


def away(cause: BaseException | None) -> Unavailable:
    hint = "See whether the server runs and can be reached from here."
    return Unavailable(f"PostgreSQL cannot be reached: {told(cause)}.", hint)


def answer_lost(cause: BaseException) -> Unavailable:
    message = f"The connection to PostgreSQL was lost before it answered: {told(cause)}."
    return Unavailable(message, "The write may have been done or not: read it, and try again.", executed=True)


def told(cause: BaseException | None) -> str:
    return str(cause).rstrip(".") or type(cause).__name__


async def migrate(
    connection: asyncpg.Connection, steps: tuple[migrations.Migration, ...] = migrations.MIGRATIONS
) -> None:
    """Each step in a transaction, with a lock that other replicas wait for."""
    step: migrations.Migration | None = steps[0]
    while step:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(migrations.VERSION_TABLE)
            step = migrations.next_after(await connection.fetchval(migrations.READ_VERSION), steps)
            if step:
                for statement in (*step.postgres_before, *step.statements, *step.postgres_after):
                    await connection.execute(statement)
                await connection.execute(migrations.WRITE_VERSION, step.version)
