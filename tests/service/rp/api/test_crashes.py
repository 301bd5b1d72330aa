"""Tests of a service that is killed or stopped, and of a database restart: no write, enrolment or key is lost."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.enroller import Enroller
from aks_flex_rp.nodes.join_tracker import JoinTracker
from aks_flex_rp.nodes.machine_claims import FetchingClient
from aks_flex_rp.server import STOP_SECONDS
from tests.service.rp.api.bodies import token
from tests.service.rp.api.client import secret_of
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import MANAGED, ONE, TWO, Machine, NodeWithKey
from tests.service.rp.api.processes import ServiceProcess
from tests.service.rp.api.traffic_recorder import Recording
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from aks_flex_rp.clusters.facts import ClusterFacts
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer
    from tests.service.rp.store.servers import PostgresServer


WRITERS = 8
ACKNOWLEDGED = 120  # in each round, before the fault
PATIENCE = 90.0


@dataclass
class Load:
    """Writers, each with its own node, that continue until they are stopped or disconnected."""

    api: Api
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last acknowledged response for each node
    numbers: dict[str, int] = field(default_factory=dict)  # the last number sent for each node
    statuses: set[int] = field(default_factory=set)
    ending: threading.Event = field(default_factory=threading.Event)

    def write(self, name: str) -> None:
        number = self.numbers.get(name, 0)
        while not self.ending.is_set():
            number = number % 1000 + 1
            self.numbers[name] = number
            try:
                answer = self.api.put(name, token(maxPods=number), url=True)
            except (OSError, urllib3.exceptions.HTTPError):
                return
            self.statuses.add(answer.status)
            if answer.status in {200, 201}:
                self.seen[name] = answer.properties
            else:
                time.sleep(0.05)

    def until(self, count: int) -> None:
        """Waits until this many more writes are acknowledged, and at least one of each writer."""
        goal, end = self.total() + count, time.monotonic() + PATIENCE
        while self.total() < goal or len(self.seen) < WRITERS:
            assert self.statuses <= {200, 201, 503}, self.statuses
            assert time.monotonic() < end, f"only {self.total()} of {goal} writes were acknowledged"
            time.sleep(0.01)

    def total(self) -> int:
        """Returns the number of writes: each write of a node increases its number by one."""
        return sum(node["nodeConfig"]["maxPods"] for node in list(self.seen.values()))


def check(api: Api, load: Load) -> None:
    """Checks that all acknowledged writes are stored; one more write of each node may be stored
    without a response.
    """
    for name, acknowledged in load.seen.items():
        found = api.get(name)
        assert found.status == 200, found.text
        shown = found.properties
        assert int(shown["configVersion"]) >= int(acknowledged["configVersion"])
        said = acknowledged["nodeConfig"]["maxPods"]
        if shown["configVersion"] == acknowledged["configVersion"]:
            assert shown["nodeConfig"]["maxPods"] == said
            bundle = api.fetch(acknowledged["configUrl"])
            assert bundle.status == 200
            assert bundle.json["configVersion"] == acknowledged["configVersion"]
        else:
            assert shown["nodeConfig"]["maxPods"] == load.numbers[name]
        assert shown["config"]["node"]["maxPods"] == shown["nodeConfig"]["maxPods"]
        newest = api.audit(name, limit="3").json["value"]
        recorded = [each["detail"]["configVersion"] for each in newest if each["what"] in {"create", "update"}]
        assert shown["configVersion"] == recorded[0]


@pytest.fixture
def process(
    database: str | None, tmp_path: Path, ca_cert_data: str, postgres: PostgresServer
) -> Iterator[ServiceProcess]:
    own = postgres.new_database() if database else None
    made = ServiceProcess(tmp_path / "service", ca_cert_data, own, Recording())
    made.start()
    yield made
    made.close()


def test_acknowledged_writes_survive_sigkill_of_service(process: ServiceProcess) -> None:
    load = Load(process.api)
    for _ in range(2):
        load.api = process.api
        with ThreadPoolExecutor(WRITERS) as pool:
            for number in range(WRITERS):
                pool.submit(load.write, f"edge-{number}")
            load.until(ACKNOWLEDGED)
            process.kill(signal.SIGKILL)
        process.start()
        assert load.statuses <= {200, 201}
        check(process.api, load)


def test_requests_recover_after_database_restart_under_load(
    tmp_path: Path, ca_cert_data: str, postgres: PostgresServer
) -> None:
    process = ServiceProcess(tmp_path / "service", ca_cert_data, postgres.new_database(), Recording())
    process.start()
    load = Load(process.api)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            for number in range(WRITERS):
                pool.submit(load.write, f"edge-{number}")
            load.until(ACKNOWLEDGED)
            postgres.stop(signal.SIGQUIT)
            postgres.start()
            load.until(ACKNOWLEDGED)
            load.ending.set()
        assert load.statuses <= {200, 201, 503}
        check(process.api, load)
    finally:
        load.ending.set()
        process.close()


def test_sigterm_releases_held_polls_and_stops_service(process: ServiceProcess) -> None:
    api = process.api
    etag = api.put("edge", token()).headers["etag"]
    with ThreadPoolExecutor(3) as pool:
        held = [pool.submit(lambda: api.get("edge", if_none_match=etag, prefer="wait=50")) for _ in range(3)]
        metrics = partial(api.ask, "GET", "/metrics", query={})
        until(lambda: "aks_flex_rp_held_polls 3.0" in metrics().text, "the polls are held", PATIENCE)

        process.kill(signal.SIGTERM, STOP_SECONDS / 2)  # although clients keep their connections open

        for answer in [each.result(PATIENCE) for each in held]:  # the next poll must go to another replica
            assert (answer.status, answer.headers["connection"]) == (304, "close")
    assert "Traceback" not in process.log.read_text()


numbers = count(1)
WRITES = ("put_machine", "delete_machine", "put_enrolment", "put_node", "record", "put_delivery")


class PowerLossError(Exception):
    pass


class StoppingStore:
    """A store whose process ends before or after its n-th write."""

    def __init__(self, store: Any, at: int, *, after: bool) -> None:
        self._store, self._at, self._after, self.writes = store, at, after, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._stopping(found) if name in WRITES else found

    def _stopping(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def stop(*values: Any, **named: Any) -> Any:
            self.writes += 1
            if self.writes == self._at and not self._after:
                raise PowerLossError
            written = await write(*values, **named)
            if self.writes == self._at:
                raise PowerLossError
            return written

        return stop


def is_stopped(service: Running, work: Coroutine[Any, Any, object]) -> bool:
    """Returns whether there was a write at which the work was stopped."""
    try:
        service.call(work)
    except PowerLossError:
        return True
    return False


def answered_while_killed(
    process: ServiceProcess, requests: Mapping[str, Callable[[], Answer]], goals: tuple[int, ...]
) -> dict[str, Answer]:
    """Repeats each request until it is accepted or refused. The service is killed after these many answers."""
    answers: dict[str, Answer] = {}
    running = threading.Event()
    running.set()

    def repeat(key: str) -> None:
        while key not in answers:
            running.wait(60)
            with suppress(OSError, urllib3.exceptions.HTTPError):
                answer = requests[key]()
                if answer.status in {200, 409}:
                    answers[key] = answer

    with ThreadPoolExecutor(len(requests)) as threads:
        for key in requests:
            threads.submit(repeat, key)
        for goal in goals:
            while len(answers) < goal:
                time.sleep(0.002)
            running.clear()
            process.kill(signal.SIGKILL)
            process.start()
            running.set()
    return answers


def enrol_and_stop(service: Running, made: PoolEnrolment, machine: EnrollingMachine, at: int, *, after: bool) -> bool:
    """Enrols a machine until the n-th write. Returns whether there was one."""
    context = service.service.context
    store: Any = StoppingStore(context.store, at, after=after)
    enroller = Enroller(NodeCommands(replace(context, store=store)))
    found = service.call(context.store.enrolment(PLANT.key, made.id))
    assert found
    return is_stopped(service, enroller.enrol(found, machine.request))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rule", ["{hostname}", "stop{pool}-{number}"])
def test_enrolment_is_continued_after_a_stop_at_each_write(service: Running, rule: str, after: bool) -> None:
    pool = f"cr{next(numbers)}"
    for at in count(1):
        made = PoolEnrolment.of(service.admin, pool, maxUses=1, nodeName=rule.replace("{pool}", f"{pool}-{at}"))
        machine = EnrollingMachine(f"{pool}-{at}")
        if not enrol_and_stop(service, made, machine, at, after=after):
            assert at > 2  # the claim and the node
            return
        name = made.node_of(machine)
        assert (made.uses, [each["nodeName"] for each in made.machines]) == (1, [name]), f"after write {at}"
        assert service.admin.status(name)["nodeKey"]["thumbprint"] == machine.key.thumbprint
        made.refuses(EnrollingMachine("other"), "EnrolmentExhausted")


@pytest.mark.parametrize("after", [False, True])
def test_takeover_is_continued_after_a_stop_at_each_write(service: Running, after: bool) -> None:
    pool = f"tk{next(numbers)}"
    for at in count(1):
        made = PoolEnrolment.of(service.admin, pool, maxUses=1)
        machine = EnrollingMachine(f"{pool}-{at}")
        made.enrol(machine)
        service.admin.act(machine.hostname, "release")
        wiped = machine.wiped()
        if not enrol_and_stop(service, made, wiped, at, after=after):
            assert at > 2
            return
        assert made.node_of(wiped) == machine.hostname
        assert (made.uses, [each["state"] for each in made.machines]) == (1, ["Enrolled"]), f"after write {at}"


def test_no_use_is_lost_or_taken_twice_by_sigkill(process: ServiceProcess) -> None:
    """Machines retry until they have an answer, while the service is killed again and again."""
    uses, machines = 6, [EnrollingMachine(f"kill-{each}") for each in range(9)]
    made = PoolEnrolment.of(process.api, "kill", maxUses=uses, nodeName="kill-{number:03}")
    requests = {each.hostname: partial(each.enrol, process.api.connection, made.url) for each in machines}
    answers = answered_while_killed(process, requests, (1, 3))
    made = replace(made, admin=process.api)
    names = [each.json["config"]["node"]["name"] for each in answers.values() if each.status == 200]
    assert len(names) == len(set(names)) == uses == made.uses
    assert {each["nodeName"] for each in made.machines} == set(names)
    refused = [each.error["code"] for each in answers.values() if each.status == 409]
    assert refused == ["EnrolmentExhausted"] * 3


ROUNDS = 4  # of a service that is killed


async def no_cluster(_key: str, _facts: ClusterFacts) -> None:
    raise AssertionError("A fetch changes no cluster.")


def fetch_and_stop(service: Running, node: NodeWithKey, machine: Machine, at: int, *, after: bool) -> bool:
    """Fetches the URL until the n-th write. Returns whether there was one."""
    context = service.service.context
    store: Any = StoppingStore(context.store, at, after=after)
    tracker = JoinTracker(replace(context, store=store), no_cluster, lambda _: None)
    secret = secret_of(node.url)
    bundle = service.call(service.service._bundles.fetch(secret, time.time()))
    assert bundle
    client = FetchingClient(machine.identity, machine.key.thumbprint, "127.0.0.1", "r")
    return is_stopped(service, tracker.on_config_fetched(bundle, client))


@pytest.mark.parametrize("after", [False, True])
def test_first_fetch_is_continued_by_the_same_machine_only(service: Running, name: str, after: bool) -> None:
    for at in count(1):
        node = NodeWithKey(service, f"{name}-{at}")
        machine, thief = node.machine(ONE), node.machine(TWO)
        if not fetch_and_stop(service, node, machine, at, after=after):
            assert at > 2  # the key, and the phase of the join
            return
        if after or at > 1:  # the key is bound
            assert thief.fetch(node.url).error["code"] == "ConfigUrlTaken", f"after write {at}"
        assert machine.fetch(node.url).status == 200, f"after write {at}"
        assert thief.fetch(node.url).error["code"] == "ConfigUrlTaken"
        node.observe(ONE)
        assert (machine.get().status, thief.get().status) == (200, 401)
        assert len(node.events("key.bound")) == 1
        assert node.status["nodeKey"]["thumbprint"] == machine.key.thumbprint


def test_killed_service_binds_each_url_to_one_of_two_machines(process: ServiceProcess) -> None:
    """Two machines fetch each URL until they have an answer, while the service is killed."""
    names = [f"bind-{number}" for number in range(ROUNDS)]
    urls = {name: process.api.url_of(name, MANAGED) for name in names}
    machines = {(name, each.id): Machine(process.api, name, each) for name in names for each in (ONE, TWO)}
    requests = {" ".join(key): partial(machine.fetch, urls[machine.name]) for key, machine in machines.items()}
    answers = answered_while_killed(process, requests, (1,))
    for name in names:
        statuses = {each.id: answers[f"{name} {each.id}"].status for each in (ONE, TWO)}
        assert sorted(statuses.values()) == [200, 409], statuses
        winner, loser = sorted(statuses, key=lambda each: statuses[each])
        machines[name, winner].admin = machines[name, loser].admin = process.api
        assert machines[name, winner].fetch(urls[name]).status == 200, "its answer may have been lost"
        assert (machines[name, winner].get().status, machines[name, loser].get().status) == (200, 401)
