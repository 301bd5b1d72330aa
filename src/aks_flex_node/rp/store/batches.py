"""Group commit for PostgreSQL: writes of one text that wait at the same moment go to the server together.

They are sent as one pipeline, which costs one round trip, and are one transaction. It matters most for waking others:
PostgreSQL lets transactions that notify commit one by one, and so it is better that there are few.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from aks_flex_node.rp.store.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aks_flex_node.rp.store.rows import Row, Values

    # A text and its parameters, many times; each row that comes back begins with the place of its parameters.
    Execute = Callable[[str, Sequence[Values]], Awaitable[Sequence[Row]]]

TOGETHER = 200  # writes in a transaction at most
LANES = 2  # transactions at a time: while one is committed, the next is sent


@dataclass(frozen=True)
class Job:
    values: Values
    done: asyncio.Future[list[Row]]


class Batches:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._waiting: dict[str, list[Job]] = {}
        self._lanes: set[asyncio.Task[None]] = set()

    async def write(self, text: str, values: Values) -> list[Row]:
        job = Job(values, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(text, []).append(job)
        if len(self._lanes) < LANES:
            lane = asyncio.create_task(self._lane(), name="store-writes")
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return await job.done

    async def finish(self) -> None:
        """Until all that waits is done."""
        while self._lanes:
            await asyncio.wait(set(self._lanes))

    async def _lane(self) -> None:
        while self._waiting:
            text, jobs = self._take()
            try:
                await self._settle(text, jobs)
            except BaseException as error:
                for job in jobs:
                    answer(job, Unavailable(f"The write was given up: {error!r}.", executed=True))
                raise

    def _take(self) -> tuple[str, list[Job]]:
        """In the order of their keys, so that no two transactions wait for each other's rows."""
        text, jobs = next(iter(self._waiting.items()))
        del self._waiting[text]
        if len(jobs) > TOGETHER:
            self._waiting[text] = jobs[TOGETHER:]
        return text, sorted(jobs[:TOGETHER], key=lambda job: job.values[:2])

    async def _settle(self, text: str, jobs: list[Job]) -> None:
        """All together; one by one when PostgreSQL refuses, so that the fault of one is not its neighbours'."""
        try:
            found = await self._execute(text, [(*job.values, place) for place, job in enumerate(jobs)])
        except (asyncpg.PostgresError, ValueError) as error:
            if len(jobs) == 1:
                answer(jobs[0], error)
            for job in jobs if len(jobs) > 1 else ():
                await self._settle(text, [job])
        except Exception as error:
            for job in jobs:
                answer(job, error)
        else:
            share(jobs, found)


def share(jobs: list[Job], found: Sequence[Row]) -> None:
    """To each the rows that are its own."""
    own: list[list[Row]] = [[] for _ in jobs]
    for row in found:
        own[row[0]].append(tuple(row)[1:])
    for job, rows in zip(jobs, own, strict=True):
        answer(job, rows)


def answer(job: Job, outcome: list[Row] | Exception) -> None:
    """Unless whoever asked has gone meanwhile."""
    if job.done.done():
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)
