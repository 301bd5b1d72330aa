"""Runs roll-outs in processes that kill themselves at a write, or have the database restarted there.

python -m tests.service.rp.rollouts.crashing_provider

Reads a JSON task from each line, runs it in a child process, and prints a JSON result: how the child ended, and what
people see then. The child is forked, so that none of them has to start Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aks_flex_rp.store import postgres  # noqa: F401 - imported before the fork
from aks_flex_rp.store.model import StoreUnavailable
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.rollouts.rollout_world import Clocks, Fleet, replica

BUDGET = 2
PLAN: dict[str, Any] = {"maxUnavailable": str(BUDGET), "soakSeconds": 2, "stageTimeoutSeconds": 600}
ENDS = ("Succeeded", "Reversed", "Halted", "Aborted")
ROUNDS = 80


@dataclass
class Task:
    room: str
    database: str | None
    pool: str
    start: float  # of the clock
    is_bad: bool = False  # the second node cannot apply the revision
    kill_at: int = 0  # the number of the write
    after: bool = False  # kills after the write instead of before it
    restart_at: int = 0  # asks for a restart of the database before this write, and waits for it


class Interrupted:
    """Counts the writes of a store, and ends the process or waits at one of them."""

    def __init__(self, fleet: Fleet, task: Task) -> None:
        self.fleet, self.task, self.writes = fleet, task, 0
        store: Any = fleet.store
        self._one, self._many = store._write, store._write_many
        store._write, store._write_many = self._write, self._write_many

    async def _write(self, *values: Any, **named: Any) -> Any:
        return await self._at(lambda: self._one(*values, **named))

    async def _write_many(self, *values: Any, **named: Any) -> Any:
        return await self._at(lambda: self._many(*values, **named))

    async def _at(self, write: Any) -> Any:
        self.writes += 1
        number = self.writes
        if number == self.task.kill_at and not self.task.after:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.task.restart_at:
            print(json.dumps({"restart": number}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        written = await write()
        if number == self.task.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        await self._check_budget()
        return written

    async def _check_budget(self) -> None:
        """The budget must hold at every moment, as it is stored."""
        fleet = self.fleet
        rollout = await fleet.store.rollout(PLANT.key, fleet.pool, "r1")
        if rollout:
            nodes = await fleet.store.rollout_nodes(rollout)
            busy = [each.node for each in nodes if each.state in {"Updating", "Reversing"}]
            assert len(busy) <= BUDGET, f"{busy} are updated at once"


async def run(task: Task) -> dict[str, Any]:
    clocks = Clocks(task.start)
    async with replica(Path(task.room), task.database, clocks) as here:
        fleet = Fleet(here, task.pool)
        if task.is_bad:
            fleet.broken = lambda name, revision: name == fleet.names[1] and revision == 2
        await fleet.create()
        interrupted = Interrupted(fleet, task)
        for _ in range(ROUNDS):
            with suppress(StoreUnavailable):  # everything is tried again, as by the service
                if (await fleet.stored()).phase == "None":
                    await fleet.start(**PLAN)
                await here.step(1.0)
                await fleet.work()
                if (await fleet.stored()).phase in ENDS:
                    break
        return {"writes": interrupted.writes, **await seen(fleet)}


async def seen(fleet: Fleet) -> dict[str, Any]:
    """What is to be the same with and without an interruption; names without the pool."""
    pool = await fleet.store.pool(PLANT.key, fleet.pool)
    assert pool
    shown, versions = await fleet.shown(), await fleet.store.pool_versions(pool)
    states = await fleet.events("rollout.created", "rollout.state", "revision.barred")
    found = {
        "state": shown["state"],
        "reason": shown.get("reason", ""),
        "waitsFor": shown["waitsFor"],
        "failures": shown["failures"],
        "nodes": await fleet.states(),
        "causes": await fleet.causes(),
        "revisions": await fleet.revisions(),
        "staged": [name for name in fleet.names if (member := (await fleet.node(name)).pool) and member.next],
        "given": await fleet.given(),
        "stable": versions.stable,
        "barred": [each.revision for each in versions.barred],
        "audit": [[each.what.value, each.detail.get("state", "")] for each in states],
        "signals": len(await fleet.store.rollout_signals(100)),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found).replace(f"{fleet.pool}-", "n"))
    return plain


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                print(json.dumps(asyncio.run(run(Task(**json.loads(line))))), flush=True)
            except BaseException as error:  # the parent reports it
                print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            print(json.dumps({"killed": os.WTERMSIG(status)}), flush=True)


if __name__ == "__main__":
    main()
