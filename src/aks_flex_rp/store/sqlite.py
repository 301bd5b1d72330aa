"""Store on SQLite: one file, one writer thread that commits all waiting writes together, a few reader threads."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from aks_flex_rp.store import migrations
from aks_flex_rp.store.base import Store
from aks_flex_rp.store.model import Conflict, DatabaseCorrupt, StoreError, StoreUnavailable
from aks_flex_rp.store.rows import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.store.changes import ChangeBroadcast, NodeChange
    from aks_flex_rp.store.record_authenticator import RecordAuthenticator
    from aks_flex_rp.store.rows import Row, Values
    from aks_flex_rp.store.sql import WriteStatement

    Rows = Sequence[Row]
    Outcome = Rows | Exception


MAX_COMMIT = 1000  # writes per commit
TAKEN = "UNIQUE constraint failed"  # begins the message of SQLite, also for primary keys


@dataclass(frozen=True)
class QueuedWrite:
    act: Callable[[sqlite3.Connection], Rows]  # may be called twice, if another write in the batch fails
    change: NodeChange | None  # published if `act` returns a row and the commit is durable
    done: asyncio.Future[Rows]


class SqliteWriter:
    """Writer thread that owns the connection. Must be used from the event loop in which it was started."""

    def __init__(
        self, connection: sqlite3.Connection, broadcast: ChangeBroadcast, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._connection = connection
        self._broadcast = broadcast
        self._loop = loop
        self._queue: SimpleQueue[QueuedWrite | None] = SimpleQueue()
        self._stopping = False
        self._thread = Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    async def write(self, act: Callable[[sqlite3.Connection], Rows], change: NodeChange | None = None) -> Rows:
        if not self.alive:
            raise StoreUnavailable("The store is not running.")
        done: asyncio.Future[Rows] = self._loop.create_future()
        self._queue.put(QueuedWrite(act, change, done))
        return await done

    async def stop(self) -> None:
        """Completes the queued writes and rejects new ones."""
        self._stopping = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        more = True
        while more:
            jobs, more = self._gather()
            if jobs:
                self._answer(jobs, self._commit(jobs))

    def _gather(self) -> tuple[list[QueuedWrite], bool]:
        """Takes all queued writes, at least one. Also returns whether more can follow."""
        jobs: list[QueuedWrite] = []
        with suppress(Empty):
            while len(jobs) < MAX_COMMIT:
                job = self._queue.get(block=not jobs)
                if job is None:
                    return jobs, False
                jobs.append(job)
        return jobs, True

    def _commit(self, jobs: list[QueuedWrite]) -> list[Outcome]:
        """Commits without savepoints, which is faster. Repeats with savepoints if one of the writes failed."""
        try:
            return self._transaction(jobs, lambda job: job.act(self._connection))
        except sqlite3.OperationalError as error:  # caused by the disk or another process, not by a write
            return [store_error(error) for _ in jobs]
        except Exception:
            return self._commit_guarded(jobs)

    def _commit_guarded(self, jobs: list[QueuedWrite]) -> list[Outcome]:
        try:
            return self._transaction(jobs, self._guarded)
        except Exception as error:  # any error must reach the waiting callers
            return [store_error(error) for _ in jobs]

    def _transaction(self, jobs: list[QueuedWrite], act: Callable[[QueuedWrite], Outcome]) -> list[Outcome]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [act(job) for job in jobs]
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return outcomes

    def _guarded(self, job: QueuedWrite) -> Outcome:
        """Executes one write in a savepoint, so that its error affects only itself, unless SQLite ended the
        transaction.
        """
        self._connection.execute("SAVEPOINT one")
        try:
            outcome: Outcome = job.act(self._connection)
        except Exception as error:
            if not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO one")
            outcome = store_error(error)
        self._connection.execute("RELEASE one")
        return outcome

    def _answer(self, jobs: list[QueuedWrite], outcomes: list[Outcome]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._loop.call_soon_threadsafe(self._settle, jobs, outcomes)

    def _settle(self, jobs: list[QueuedWrite], outcomes: list[Outcome]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                if not job.done.done():
                    job.done.set_exception(outcome)
                continue
            if outcome and job.change:
                self._broadcast.publish([job.change])
            if not job.done.done():
                job.done.set_result(outcome)


def store_error(error: Exception) -> Exception:
    """Maps operational errors of SQLite (disk full, locked, unreadable), a corrupt file, and a value that another
    writer has taken. Others are bugs.
    """
    if isinstance(error, sqlite3.IntegrityError) and str(error).startswith(TAKEN):
        return Conflict("Another writer has taken this value.")
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"SQLite failed: {error}.", "Check whether the disk is full or failing.")
    if type(error) is sqlite3.DatabaseError:  # its subclasses are errors of a statement
        return DatabaseCorrupt(error)
    return error


READERS = 2
NAMES = [str(number) for number in range(1, 32_767)]  # as many as a statement may have


class SqliteStore(Store):
    def __init__(self, path: Path | str, records: RecordAuthenticator, *, timeout: float = 10.0) -> None:
        """Opens the store. `timeout` is the time in seconds that a request waits for another process's lock."""
        super().__init__(records)
        self._path = Path(path).absolute()
        self._patience = timeout
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._writer: SqliteWriter | None = None
        self._readers: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        connection = await loop.run_in_executor(None, open_for_writing, self._path, self._patience)
        self._opened.append(connection)
        self._writer = SqliteWriter(connection, self._changes, loop)
        self._readers = ThreadPoolExecutor(READERS, "store-reader")

    async def stop(self) -> None:
        """Completes the queued writes, then closes the store."""
        if self._writer:
            await self._writer.stop()
        readers, self._readers, self._writer = self._readers, None, None
        if readers:
            await asyncio.get_running_loop().run_in_executor(None, readers.shutdown)
        self._changes.end()
        while self._opened:  # the writer's connection is opened first and closed last, which removes the -wal file
            self._opened.pop().close()
        self._own = threading.local()

    async def healthy(self) -> bool:
        try:
            await self._read("SELECT 1")
        except (StoreError, sqlite3.Error):
            return False
        return self._writer is not None and self._writer.alive

    async def backup(self, target: Path | str) -> None:
        """Copies the database consistently while the store is in use. Replaces the file at `target`."""
        await asyncio.get_running_loop().run_in_executor(None, copy_database, self._path, Path(target).absolute())

    async def _read(self, text: str, *values: object) -> Sequence[Row]:
        if self._readers is None:
            raise StoreUnavailable("The store is not running.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._query, text, values)

    def _query(self, text: str, values: Values) -> Sequence[Row]:
        try:
            return fetch_all(self._reading(), text, values)
        except sqlite3.DatabaseError as error:
            raise store_error(error) from None

    def _reading(self) -> sqlite3.Connection:
        """Returns the connection of this thread."""
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = connect(f"{self._path.as_uri()}?mode=ro", self._patience)
            self._opened.append(found)
        return found

    async def _write(self, write: WriteStatement, values: Values, change: NodeChange | None = None) -> Sequence[Row]:
        parameters = named_parameters(values)

        def act(connection: sqlite3.Connection) -> Sequence[Row]:
            decided = connection.execute(write.decide, parameters).fetchall()
            for text in write.follow if decided else ():
                connection.execute(text, parameters)
            return decided

        return await self._writing().write(act, change)

    async def _write_many(self, text: str, values: Sequence[Values], *, repeatable: bool = False) -> None:  # noqa: ARG002
        parameters = [named_parameters(one) for one in values]

        def act(connection: sqlite3.Connection) -> Sequence[Row]:
            connection.executemany(text, parameters)
            return ()

        await self._writing().write(act)

    def _writing(self) -> SqliteWriter:
        if self._writer is None:
            raise StoreUnavailable("The store is not running.")
        return self._writer


def named_parameters(values: Values) -> dict[str, object]:
    """Returns named parameters: SQLite treats `$1` as a name."""
    return dict(zip(NAMES, storable(values)))  # noqa: B905 - there are more names than values


def fetch_all(connection: sqlite3.Connection, text: str, values: Values) -> list[Row]:
    """Returns the rows of a query. A text that is not UTF-8 must not hide the other rows."""
    try:
        return connection.execute(text, named_parameters(values)).fetchall()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    connection.text_factory = lambda data: data.decode(errors="replace")  # slower than the built-in one
    try:
        return connection.execute(text, named_parameters(values)).fetchall()
    finally:
        connection.text_factory = str


def connect(uri: str, timeout: float = 10.0) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)


def open_for_writing(path: Path, timeout: float = 10.0) -> sqlite3.Connection:
    """Opens or creates the database. SQLite creates its other files with the mode of the database file."""
    make_private(path)
    connection = connect(path.as_uri(), timeout)
    try:
        migrate(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise store_error(error) from None
    except BaseException:
        connection.close()
        raise
    return connection


def make_private(path: Path) -> None:
    """Creates the file with mode 0600 and syncs its directory."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(opened, 0o600)
        os.fsync(opened)
    finally:
        os.close(opened)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def migrate(connection: sqlite3.Connection, steps: tuple[migrations.Migration, ...] = migrations.MIGRATIONS) -> None:
    """Runs each migration in a transaction that other processes wait for."""
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(migrations.VERSION_TABLE)
            version = connection.execute(migrations.READ_VERSION).fetchone()[0]
            step = migrations.next_after(version, steps)
            for statement in step.statements if step else ():
                connection.execute(statement.replace(migrations.CLUSTERED, " WITHOUT ROWID"))
            if step:
                connection.execute(migrations.WRITE_VERSION, named_parameters((step.version,)))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        if step is None:
            return


def copy_database(source: Path, target: Path) -> None:
    """Copies a database with SQLite's online backup in one step. In WAL mode, this does not block writers."""
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    beside.unlink(missing_ok=True)
    make_private(beside)
    try:
        reading, writing = connect(f"{source.as_uri()}?mode=ro"), connect(beside.as_uri())
        try:
            reading.backup(writing)
            writing.execute("PRAGMA journal_mode = DELETE")  # a single file without -wal
        finally:
            writing.close()
            reading.close()
        make_private(beside)
        beside.replace(target)
        sync_directory(target.parent)
    finally:
        beside.unlink(missing_ok=True)
