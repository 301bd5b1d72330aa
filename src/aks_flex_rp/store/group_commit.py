"""Group commit for PostgreSQL: waiting writes with the same statement are sent as one pipeline in one transaction.

This saves round trips, and matters most for NOTIFY: PostgreSQL commits transactions that notify one at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from aks_flex_rp.store.model import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aks_flex_rp.store.rows import Row, Values

    # Executes a statement with many parameter rows. Each returned row begins with the index of its parameters.
    Execute = Callable[[str, Sequence[Values]], Awaitable[Sequence[Row]]]

MAX_BATCH = 200  # writes per transaction
MAX_TRANSACTIONS = 2  # concurrent transactions: while one is committed, the next is sent


@dataclass(frozen=True)
class PendingWrite:
    values: Values
    done: asyncio.Future[list[Row]]


class GroupCommit:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._waiting: dict[str, list[PendingWrite]] = {}
        self._lanes: set[asyncio.Task[None]] = set()

    async def write(self, text: str, values: Values) -> list[Row]:
        job = PendingWrite(values, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(text, []).append(job)
        if len(self._lanes) < MAX_TRANSACTIONS:
            lane = asyncio.create_task(self._lane(), name="store-writes")
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await job.done

    async def finish(self) -> None:
        """Waits until all pending writes are done."""
        while self._lanes:
            await asyncio.wait(set(self._lanes))

    async def _lane(self) -> None:
        while self._waiting:
            text, jobs = self._take()
            try:
                await self._execute_batch(text, jobs)
            except BaseException as error:
                for job in jobs:
                    complete_write(job, StoreUnavailable(f"The write was aborted: {error!r}.", executed=True))
                raise

    def _take(self) -> tuple[str, list[PendingWrite]]:
        """Takes the next batch, sorted by key so that concurrent transactions do not deadlock."""
        text, jobs = next(iter(self._waiting.items()))
        del self._waiting[text]
        if len(jobs) > MAX_BATCH:
            self._waiting[text] = jobs[MAX_BATCH:]
        return text, sorted(jobs[:MAX_BATCH], key=lambda job: job.values[:2])

    async def _execute_batch(self, text: str, jobs: list[PendingWrite]) -> None:
        """Executes the writes together, or one by one if PostgreSQL rejects the batch, so that only the faulty one
        fails.
        """
        try:
            found = await self._execute(text, [(*job.values, index) for index, job in enumerate(jobs)])
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
