"""A service that is killed while a first fetch binds a key: the same machine may retry and join, and no other one."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_rp.nodes.join_tracker import JoinTracker
from aks_flex_rp.nodes.machine_claims import FetchingClient
from tests.service.rp.api.keyed_nodes import MANAGED, ONE, TWO, Machine, NodeWithKey
from tests.service.rp.api.test_crashes import process
from tests.service.rp.api.test_enrolment_crashes import PowerLossError, StoppingStore

if TYPE_CHECKING:
    from aks_flex_rp.clusters.facts import ClusterFacts
    from tests.service.rp.api.processes import ServiceProcess
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

ROUNDS = 4  # of a service that is killed
_ = process  # a fixture


async def no_cluster(_key: str, _facts: ClusterFacts) -> None:
    raise AssertionError("A fetch changes no cluster.")


def fetch_and_stop(service: Running, node: NodeWithKey, machine: Machine, at: int, *, after: bool) -> bool:
    """Fetches the URL until the n-th write. Returns whether there was one."""
    context = service.service.context
    store: Any = StoppingStore(context.store, at, after=after)
    tracker = JoinTracker(replace(context, store=store), no_cluster, lambda _: None)
    secret = node.url.partition("#")[0].rpartition("/")[2]
    bundle = service.call(service.service._bundles.fetch(secret, time.time()))
    assert bundle
    try:
        client = FetchingClient(machine.identity, machine.key.thumbprint, "127.0.0.1", "r")
        service.call(tracker.on_config_fetched(bundle, client))
    except PowerLossError:
        return True
    return False


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
    answers: dict[tuple[str, str], Answer] = {}
    running = threading.Event()
    running.set()
    names = [f"bind-{number}" for number in range(ROUNDS)]
    urls = {name: process.api.put(name, MANAGED, url=True).properties["configUrl"] for name in names}
    machines = {(name, each.id): Machine(process.api, name, each) for name in names for each in (ONE, TWO)}

    def fetch(key: tuple[str, str]) -> None:
        while key not in answers:
            running.wait(60)
            try:
                answer = machines[key].fetch(urls[key[0]])
            except (OSError, urllib3.exceptions.HTTPError):
                continue
            if answer.status in {200, 409}:
                answers[key] = answer

    with ThreadPoolExecutor(len(machines)) as threads:
        for key in machines:
            threads.submit(fetch, key)
        while not answers:
            threading.Event().wait(0.002)
        running.clear()
        process.kill(signal.SIGKILL)
        process.start()
        running.set()
    for name in names:
        statuses = {each.id: answers[name, each.id].status for each in (ONE, TWO)}
        assert sorted(statuses.values()) == [200, 409], statuses
        winner, loser = sorted(statuses, key=lambda each: statuses[each])
        machines[name, winner].admin = machines[name, loser].admin = process.api
        assert machines[name, winner].fetch(urls[name]).status == 200, "its answer may have been lost"
        assert (machines[name, winner].get().status, machines[name, loser].get().status) == (200, 401)
