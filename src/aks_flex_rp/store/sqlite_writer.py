"""Group commit for SQLite: one thread commits all waiting writes together, then completes them."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from aks_flex_rp.store.model import Conflict, DatabaseCorrupt, StoreUnavailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aks_flex_rp.store.changes import ChangeBroadcast, NodeChange
    from aks_flex_rp.store.rows import Row

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
