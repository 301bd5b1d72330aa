"""Tests of a service that is killed or stopped, and of a database restart, under load."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_rp.server import STOP_SECONDS
from tests.service.rp.api.bodies import token
from tests.service.rp.api.processes import ServiceProcess
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.service.rp.api.client import Api
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
        """Waits until this many more writes are acknowledged."""
        goal, end = self.total() + count, time.monotonic() + PATIENCE
        while self.total() < goal:
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
        assert len(load.seen) == WRITERS
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
        end = time.monotonic() + PATIENCE
        while "aks_flex_rp_held_polls 3.0" not in api.ask("GET", "/metrics", query={}).text:
            assert time.monotonic() < end
            time.sleep(0.02)

        process.kill(signal.SIGTERM, STOP_SECONDS / 2)  # although clients keep their connections open

        for answer in [each.result(PATIENCE) for each in held]:  # the next poll must go to another replica
            assert (answer.status, answer.headers["connection"]) == (304, "close")
    assert "Traceback" not in process.log.read_text()
