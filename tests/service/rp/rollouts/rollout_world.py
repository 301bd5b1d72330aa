"""The roll-outs of a service without its web server: a test takes the steps, lets nodes work, and sets the clocks."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import structs

from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.context import RequestContext
from aks_flex_rp.nodes.pool_operations import PoolCommands
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.rollouts.commands import RolloutCommands
from aks_flex_rp.rollouts.controller import RolloutController
from aks_flex_rp.rollouts.rollout_actions import RolloutActions
from aks_flex_rp.rollouts.view import rollout_resource
from aks_flex_rp.service import Service
from aks_flex_rp.store.pool_model import StoredRollout
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, known_clusters
from tests.service.rp.api.service_harness import settings
from tests.service.rp.api.simulated_fleet import BETTER, GOOD, QUICK, conditions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRun
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import AuditEvent, Node
    from aks_flex_rp.store.pool_model import PoolVersions

numbers = count(1)
CA_CERT_DATA = "bm8gQ0E="  # no cluster is called
PERSON = RequestContext(Caller("somebody", "somebody@example.com", CallerKind.USER), "r", is_owner=True)


def job_gate(name: str, seconds: int) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.example/c:1"}]}}
    return {"name": name, "timeoutSeconds": seconds, "job": {"namespace": "x", "template": pod}}


@dataclass
class Clocks:
    """The wall clock, which a test can set, and the steady one."""

    wall: float = field(default_factory=time.time)
    steady: float = 1000.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@dataclass
class Gates:
    """Answers gates as a test says; a gate without an answer never ends."""

    answers: dict[str, GateAnswer] = field(default_factory=dict)
    runs: list[GateRun] = field(default_factory=list)
    cleaned: list[GateRun] = field(default_factory=list)

    async def run(self, run: GateRun) -> GateAnswer:
        self.runs.append(run)
        while run.gate.name not in self.answers:
            await asyncio.sleep(0.001)
        return self.answers[run.gate.name]

    async def clean_up(self, run: GateRun) -> None:
        self.cleaned.append(run)

    async def check(self, cluster: str, gates: object) -> list[Any]:  # noqa: ARG002 - of a GateRunner
        return []

    def stop(self) -> None:
        return


@dataclass
class Replica:
    """One replica. Several of them can share a database, keys and clocks."""

    service: Service
    clocks: Clocks
    gates: Any = field(default_factory=Gates)

    def __post_init__(self) -> None:
        self.context = replace(self.service.context, now=lambda: self.clocks.wall)
        self.commands = NodeCommands(self.context)
        self.rollouts = RolloutCommands(self.context, self.service.settings.rollouts, self.gates, sleep=self._order)
        self.restart()

    def restart(self) -> None:
        """Forgets all that was in memory, as a new process."""
        self.controller = RolloutController(
            self.context,
            RolloutActions(self.commands, self.gates),
            clock=lambda: self.clocks.wall,
            monotonic=lambda: self.clocks.steady,
        )

    async def _order(self, _seconds: float) -> None:
        await self.controller.once()

    @property
    def store(self) -> Store:
        return self.service.store

    async def step(self, seconds: float = 1.0) -> None:
        await self.controller.once()
        await asyncio.sleep(0.001)
        self.clocks.advance(seconds)


@asynccontextmanager
async def replica(
    room: Path, database: str | None, clocks: Clocks | None = None, **words: Any
) -> AsyncIterator[Replica]:
    """Opens the store of a service in a directory, or in a PostgreSQL database with the keys in that directory."""
    room.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = settings(room, database=database, keys_file=room.parent / "keys")
    service = Service(made, FakeClusters.of(known_clusters(CA_CERT_DATA)))
    await service.store.start()
    try:
        yield Replica(service, clocks or Clocks(), **words)
    finally:
        await service.store.stop()


@dataclass
class Fleet:
    """A pool with simulated nodes: each takes over what it was given, and reports what a test says."""

    replica: Replica
    pool: str = field(default_factory=lambda: f"p{next(numbers)}")
    size: int = 4
    silent: set[str] = field(default_factory=set)
    unready: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    broken: Callable[[str, int], bool] = lambda _node, _revision: False

    @property
    def names(self) -> list[str]:
        return [f"{self.pool}-{number}" for number in range(self.size)]

    @property
    def cluster(self) -> Any:
        return self.replica.service.clusters.known[PLANT.key]  # type: ignore[attr-defined]

    @property
    def store(self) -> Store:
        return self.replica.store

    async def create(self, template: dict[str, Any] = GOOD) -> None:
        """Creates the pool and its nodes, unless they exist."""
        if await self.store.pool(PLANT.key, self.pool) is None:
            await self.write(template)
            for name in self.names:
                await self.add(name)

    async def add(self, name: str) -> None:
        if await self.store.node(PLANT.key, name) is None:
            await self.put(name, poolName=self.pool)
        node = await self.node(name)
        if not node.join.is_joined:
            joined = replace(node, join=structs.replace(node.join, state=JoinPhase.JOINED))
            await self.store.put_node(joined, node.etag)
        await self.work_on(name)

    async def put(self, name: str, *, override: bool = False, **properties: Any) -> None:
        """Writes a node as a person does."""
        guard, body = Preconditions(override_rollout=override), {"properties": properties}
        await self.replica.commands.put(self.cluster, name, body, guard, PERSON, url=False)

    async def delete(self, *names: str, override: bool = False) -> None:
        for name in names:
            guard = Preconditions(override_rollout=override)
            await self.replica.commands.delete(self.cluster, name, guard, PERSON)

    async def delete_with_pool(self) -> None:
        await self.delete(*self.names)
        await PoolCommands(self.replica.context).delete(self.cluster, self.pool, Preconditions(), PERSON)

    async def write(self, template: dict[str, Any]) -> int:
        body = {"properties": {"template": template}}
        commands = PoolCommands(self.replica.context)
        return (await commands.put(self.cluster, self.pool, body, Preconditions(), PERSON))[0].number

    async def start(self, name: str = "r1", template: dict[str, Any] = BETTER, **properties: Any) -> StoredRollout:
        """Starts a roll-out of a new revision, as a person who repeats it after a failure."""
        await self.write(template)
        body = {"properties": {**QUICK, **properties}}
        return (await self.replica.rollouts.create(self.cluster, self.pool, name, body, PERSON))[0]

    async def order(self, what: str, name: str = "r1", gate: str = "") -> StoredRollout:
        return await self.replica.rollouts.order(self.cluster, self.pool, name, what, PERSON, gate)

    # Nodes

    async def node(self, name: str) -> Node:
        found = await self.store.node(PLANT.key, name)
        assert found
        return found

    def breaks(self, *names: str, revision: int = 2) -> None:
        """Lets these nodes, and no others, fail with a revision."""
        self.broken = lambda name, given: name in names and given == revision

    def provider_is_away(self, seconds: float) -> None:
        """Forgets what a replica had in memory, and lets time pass."""
        self.replica.restart()
        self.replica.clocks.advance(seconds)

    async def work_on(self, name: str) -> None:
        node = await self.node(name)
        assert node.pool
        version = str(node.version)
        status: dict[str, Any] = {"conditions": conditions(ready="False" if name in self.unready else "True")}
        if self.broken(name, node.pool.revision):
            status = {"failedConfigVersion": version, "conditions": conditions(failed="containerd does not start.")}
        elif name not in self.stuck:
            status |= {"appliedConfigVersion": version}
        if node.pool.next:
            status["stagedPoolRevision"] = node.pool.next.revision
        known = {key: value for key, value in node.status.items() if key in status}
        rollout = await self.stored()
        soaked = rollout.state.get("since", 0.0) + rollout.spec.get("soakSeconds", 0)
        is_waited_for = rollout.phase == "Soaking" and node.last_seen < soaked
        if known != status or is_waited_for:
            merged = {**node.status, **status}
            if "failedConfigVersion" not in status:
                merged.pop("failedConfigVersion", None)
            await self.store.report(PLANT.key, name, merged, self.replica.clocks.wall)

    async def work(self) -> None:
        for name in self.names:
            if name not in self.silent and await self.store.node(PLANT.key, name):
                await self.work_on(name)

    async def note_silence(self, *names: str) -> None:
        """Lets these nodes, and no others, be silent, and notes it as the service does after some minutes."""
        self.silent = set(names)
        for name in self.names:
            await self._set_silent(name, name in names)

    async def _set_silent(self, name: str, silent: bool) -> None:
        await self.execute("UPDATE fleet SET silent = $1 WHERE key = $2", int(silent), name)
        node = await self.node(name)
        await self.store.report(PLANT.key, name, node.status, 1.0 if silent else self.replica.clocks.wall)

    async def idle(self, rounds: int = 5) -> None:
        """Takes steps in which no node does anything."""
        for _ in range(rounds):
            await self.replica.step()

    async def neighbour(self) -> Fleet:
        """Returns another pool of the same replica, with nodes."""
        await (other := Fleet(self.replica)).create()
        return other

    async def steps(self, rounds: int) -> None:
        """Takes steps, and lets the nodes work after each."""
        for _ in range(rounds):
            await self.replica.step()
            await self.work()

    async def run(self, *states: str, name: str = "r1", rounds: int = 60, seconds: float = 1.0) -> StoredRollout:
        """Takes steps and lets the nodes work until the roll-out has one of these states."""
        for _ in range(rounds):
            await self.replica.step(seconds)
            await self.work()
            found = await self.stored(name)
            if found.phase in states:
                return found
        found = await self.stored(name)
        raise AssertionError(f"{found.phase} after {rounds} rounds, waits for {found.waits}: {found.state}")

    # What people see

    async def stored(self, name: str = "r1") -> StoredRollout:
        none = StoredRollout(PLANT.key, self.pool, name, 0, "None", active=False, open=False, spec={})
        return await self.store.rollout(PLANT.key, self.pool, name) or none

    async def shown(self, name: str = "r1") -> dict[str, Any]:
        found = await self.stored(name)
        resource = rollout_resource(found, self.cluster.id, await self.store.count_states(found))
        properties: dict[str, Any] = resource["properties"]
        return properties

    async def states(self, name: str = "r1") -> dict[str, str]:
        return {each.node: each.state for each in await self.store.rollout_nodes(await self.stored(name))}

    async def causes(self, name: str = "r1") -> dict[str, str]:
        return {each.node: each.cause for each in await self.store.rollout_nodes(await self.stored(name))}

    async def revisions(self) -> dict[str, int]:
        found = {}
        for name in self.names:
            node = await self.node(name)
            found[name] = node.pool.revision if node.pool else 0
        return found

    async def is_all_on(self, revision: int) -> bool:
        return set((await self.revisions()).values()) == {revision}

    async def versions(self) -> PoolVersions:
        pool = await self.store.pool(PLANT.key, self.pool)
        assert pool
        return await self.store.pool_versions(pool)

    async def execute(self, text: str, *values: object) -> None:
        """Changes the database as its administrator can."""
        store: Any = self.store
        await store._write_many(text, [values])

    async def events(self, *kinds: str) -> list[AuditEvent]:
        """Returns the events of the pool and its nodes, the oldest first."""
        found = [each for each in await self.store.audit(limit=1000) if f"/{self.pool}" in each.resource]
        return [each for each in reversed(found) if not kinds or each.what.value in kinds]

    async def given(self, name: str = "r1") -> list[tuple[str, int]]:
        """Returns which nodes the roll-out has given which revisions, in order."""
        events = await self.events("update")
        return [
            (each.resource.rsplit("/", 1)[1], int(each.detail["poolRevision"]))
            for each in events
            if each.detail.get("rolloutName") == name
        ]


@asynccontextmanager
async def created_fleet(room: Path, database: str | None) -> AsyncIterator[Fleet]:
    """Yields a pool of four nodes, and a replica that works for it."""
    async with replica(room, database) as here:
        await (fleet := Fleet(here)).create()
        yield fleet
