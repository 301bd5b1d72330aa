"""A pool whose nodes are simulated: each takes over what the service gives it, and reports what a test says."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from msgspec import structs

from aks_flex_rp.join_state import JoinPhase
from tests.service.rp.api.client import API_VERSION
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_rp.store.model import Node
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

numbers = count(1)
GOOD = {"continuousMonitoring": True, "nodeConfig": {"maxPods": 50}}
BETTER = {"continuousMonitoring": True, "nodeConfig": {"maxPods": 60}}
BAD = {"continuousMonitoring": True, "nodeConfig": {"maxPods": 13}}
QUICK = {"waves": ["1", "50%", "100%"], "soakSeconds": 0, "stageTimeoutSeconds": 0, "maxUnavailable": "100%"}


@dataclass
class SimulatedFleet:
    service: Running
    size: int = 4
    template: dict[str, Any] = field(default_factory=lambda: GOOD)
    labels: Callable[[int], dict[str, str]] = lambda _: {}
    silent: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)  # never apply anything
    broken: Callable[[str, dict[str, Any]], bool] = lambda _, config: config["node"]["maxPods"] == 13
    given: list[tuple[str, int]] = field(default_factory=list)  # node and revision, in the order of the fleet

    def __post_init__(self) -> None:
        self.pool = f"f{next(numbers)}"
        self.names = [f"{self.pool}-{number}" for number in range(self.size)]
        self._reported: dict[str, str] = {}
        self.write(self.template)
        for number, name in enumerate(self.names):
            own = {"nodeConfig": {"labels": found}} if (found := self.labels(number)) else {}
            assert self.api.put(name, {"properties": {"poolName": self.pool, **own}}).status == 201
            self.change(name, lambda node: replace(node, join=structs.replace(node.join, state=JoinPhase.JOINED)))
        self.work()
        self.given.clear()

    @property
    def api(self) -> Api:
        return self.service.admin

    @property
    def cluster(self) -> str:
        return self.api.cluster.key

    def change(self, name: str, change: Callable[[Node], Node]) -> None:
        store = self.service.store

        async def write() -> None:
            node = await store.node(self.cluster, name)
            assert node is not None
            await store.put_node(change(node), node.etag)

        self.service.call(write())

    def write(self, template: dict[str, Any]) -> int:
        """Writes the template and returns its revision."""
        answer = self.api.put_pool(self.pool, template)
        assert answer.status in {200, 201}, answer.json
        revision: int = answer.properties["revision"]
        return revision

    def start(self, name: str = "r1", **properties: Any) -> Answer:
        return self.rollout("PUT", name, body={"properties": {**QUICK, **properties}})

    def rollout(self, method: str, name: str = "r1", *below: str, body: Any = None) -> Answer:
        return self.api.pool(method, self.pool, "rollouts", *([name] if name else []), *below, body=body)

    def shown(self, name: str = "r1") -> Any:
        return self.rollout("GET", name).properties

    def states(self, name: str = "r1") -> dict[str, str]:
        listed = self.rollout("POST", name, "listNodes", body={}).json["value"]
        return {each["name"]: each["state"] for each in listed}

    def revisions(self) -> dict[str, int]:
        return {name: self.api.get(name).properties["poolRevision"] for name in self.names}

    def work(self) -> None:
        """Lets every node that is not silent take over what it was given, and report."""
        for name in self.names:
            if name not in self.silent:
                self.work_on(name)

    def work_on(self, name: str) -> None:
        properties = self.api.get(name).properties
        version, config = properties["configVersion"], properties["config"]
        self.seen(name)
        report: dict[str, Any] = {"kubeletVersion": config["kubernetes"]["version"]}
        if ahead := properties.get("nextConfig"):
            report["stagedPoolRevision"] = ahead["poolRevision"]
        if name in self.stuck:
            return
        if self._reported.get(name) != version:
            self.given.append((name, properties["poolRevision"]))
            self._reported[name] = version
        if self.broken(name, config):
            report |= {"failedConfigVersion": version, "conditions": conditions(failed="containerd does not start.")}
        else:
            report |= {"appliedConfigVersion": version, "conditions": conditions()}
        self.report(name, report)

    def report(self, name: str, report: dict[str, Any]) -> None:
        answer = self.api.ask("POST", self.api.path(name, "reportStatus"), report, query={"api-version": API_VERSION})
        assert answer.status == 200, answer.json

    def seen(self, name: str, at: float | None = None) -> None:
        moment = time.time() if at is None else at
        self.service.call(self.service.store.seen([(self.cluster, name, moment)]))

    def work_until(self, *states: str, name: str = "r1", seconds: float = 60.0) -> Any:
        """Lets the nodes work until the roll-out has one of these states, and returns it."""

        def is_there() -> bool:
            self.work()
            return self.shown(name)["state"] in states

        until(is_there, f"the roll-out is {' or '.join(states)}", seconds)
        return self.shown(name)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Lets the nodes work while a command waits for a roll-out."""
        ends = Event()

        def work() -> None:
            while not ends.wait(0.1):
                self.work()

        thread = Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def conditions(failed: str = "", ready: str = "True") -> list[dict[str, str]]:
    return [
        {"type": "Ready", "status": ready, "reason": "KubeletReady"},
        {"type": "ConfigApplied", "status": "False" if failed else "True", "reason": "Applied"},
        {"type": "UpgradeFailed", "status": "True" if failed else "False", "reason": "X", "message": failed},
    ]
