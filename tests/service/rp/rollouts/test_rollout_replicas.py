"""Roll-outs with two replicas on PostgreSQL: no decision is taken twice, and one that lost its lease does nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.rollouts.rollout_world import Clocks, Fleet, replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.service.rp.rollouts.rollout_world import Replica
    from tests.service.rp.store.servers import PostgresServer

ROOT = Path(__file__).parents[4]
PATIENCE = 90.0


class Blocked:
    """A method of a store that waits until it is released, and then goes on: its process was paused there."""

    def __init__(self, store: Any, name: str) -> None:
        self.reached, self._free = asyncio.Event(), asyncio.Event()
        self._store, self._name, self._call = store, name, getattr(store, name)
        setattr(store, name, self._wait)

    async def _wait(self, *values: Any, **named: Any) -> Any:
        self.reached.set()
        await self._free.wait()
        return await self._call(*values, **named)

    def release(self) -> None:
        setattr(self._store, self._name, self._call)
        self._free.set()


@asynccontextmanager
async def pair(room: Path, database: str) -> AsyncIterator[tuple[Replica, Replica, Fleet]]:
    """Opens two replicas with the same clocks, and a pool whose nodes use the second one."""
    clocks = Clocks()
    async with replica(room / "a", database, clocks) as one, replica(room / "b", database, clocks) as other:
        fleet = Fleet(other)
        await fleet.create()
        yield one, other, fleet


async def pause_in(
    one: Replica, fleet: Fleet, method: str, *, rounds: int = 40
) -> tuple[asyncio.Task[None], Blocked]:
    """Takes steps with a replica until it is about to call a method of its store, and leaves it there."""
    blocked = Blocked(one.store, method)
    for _ in range(rounds):
        step = asyncio.create_task(one.controller.once())
        reached = asyncio.create_task(blocked.reached.wait())
        await asyncio.wait({step, reached}, return_when=asyncio.FIRST_COMPLETED)
        if blocked.reached.is_set():
            return step, blocked
        reached.cancel()
        one.clocks.advance(1.0)
        await fleet.work()
    raise AssertionError(f"{method} was not called")


@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize("method", ["put_node", "put_rollout", "put_pool_versions", "signals_handled"])
async def test_replica_that_lost_its_lease_in_a_step_does_nothing(
    postgres: PostgresServer, tmp_path: Path, method: str, is_bad: bool
) -> None:
    async with pair(tmp_path, postgres.new_database()) as (one, other, fleet):
        if is_bad:
            fleet.breaks(fleet.names[1])
        await fleet.start()
        stopped, blocked = await pause_in(one, fleet, method)
        await other.controller.once()
        assert other.controller.rollouts == []  # it waits for the lease
        one.clocks.advance(20.0)
        await fleet.run("Reversed" if is_bad else "Succeeded")
        found, states = await fleet.stored(), await fleet.events("rollout.created", "rollout.state")
        given, nodes = await fleet.given(), await fleet.states()

        blocked.release()
        await stopped
        for _ in range(3):
            await one.controller.once()

        assert one.controller.rollouts == []
        assert await fleet.stored() == found
        assert await fleet.states() == nodes
        assert await fleet.given() == given
        assert len(given) == len(set(given)) == 4
        assert await fleet.events("rollout.created", "rollout.state") == states
        versions = await fleet.versions()
        assert (versions.stable, [each.revision for each in versions.barred]) == ((1, [2]) if is_bad else (2, []))


async def test_stale_success_does_not_make_a_reversed_revision_stable(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A replica is paused when it is about to store the success. Meanwhile another one sees a node fail."""

    async with pair(tmp_path, postgres.new_database()) as (one, _other, fleet):
        await fleet.start(waves=["100%"], soakSeconds=5)
        stopped, blocked = await pause_in(one, fleet, "put_pool_versions")
        fleet.unready = {fleet.names[0]}
        await fleet.work()
        one.clocks.advance(20.0)
        await fleet.run("Reversing")
        fleet.unready.clear()
        await fleet.run("Reversed")
        blocked.release()
        await stopped
        assert (await fleet.versions()).stable == 1
        assert await fleet.is_all_on(1)


# Processes


class SteppingReplica:
    def __init__(self, room: Path, database: str) -> None:
        self.log = (room.parent / f"{room.name}.log").open("w")
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.service.rp.rollouts.stepping_replica", str(room), database),
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )
        assert self._process.stdout
        self.holder = self._process.stdout.readline().strip()
        assert self.holder, Path(self.log.name).read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdout
        self._process.stdout.close()
        self.log.close()


@pytest.fixture
def replicas() -> Iterator[list[SteppingReplica]]:
    found: list[SteppingReplica] = []
    yield found
    for each in found:
        each.close()


async def holder(fleet: Fleet) -> str:
    store: Any = fleet.store
    found = await store._read("SELECT holder FROM leases")
    return str(found[0][0]) if found else ""


async def work_until(fleet: Fleet, is_done: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not await is_done():
        assert time.monotonic() < end, await fleet.shown()
        fleet.replica.clocks.wall = time.time()
        await fleet.work()
        await asyncio.sleep(0.05)


async def test_lease_moves_when_its_holder_is_killed_or_paused(
    postgres: PostgresServer, tmp_path: Path, replicas: list[SteppingReplica]
) -> None:
    database = postgres.new_database()

    async with replica(tmp_path / "nodes", database) as here:
        fleet = Fleet(here, size=6)
        await fleet.create()

        async def moved(before: str) -> bool:
            return await holder(fleet) not in {before, ""}

        async def reached(wave: int) -> bool:
            return bool((await fleet.shown())["wave"] >= wave)

        async def ended() -> bool:
            return not (await fleet.stored()).active

        replicas.extend(SteppingReplica(tmp_path / each, database) for each in ("a", "b"))
        await work_until(fleet, lambda: moved(""))
        first = await holder(fleet)
        await fleet.start(soakSeconds=1, maxUnavailable="1", waves=["1", "2", "50%", "100%"])
        await work_until(fleet, lambda: reached(2))
        next(each for each in replicas if each.holder == first).send(signal.SIGKILL)
        await work_until(fleet, lambda: moved(first))
        replicas.append(SteppingReplica(tmp_path / "c", database))
        second = await holder(fleet)
        await work_until(fleet, lambda: reached(3))
        paused = next(each for each in replicas if each.holder == second)
        paused.send(signal.SIGSTOP)
        await work_until(fleet, lambda: moved(second))
        await work_until(fleet, lambda: reached(4))
        paused.send(signal.SIGCONT)
        await work_until(fleet, ended)
        assert sorted(await fleet.given()) == [(name, 2) for name in fleet.names]  # each of them once
        states = [each.detail["state"] for each in await fleet.events("rollout.state")]
        assert states == [*["Running", "Soaking"] * 4, "Succeeded"]
        assert len(await fleet.events("rollout.created")) == 1
        assert "Traceback" not in "".join(Path(each.log.name).read_text() for each in replicas)
