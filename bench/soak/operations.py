"""Operations on the nodes of a soak test, and faults of what all nodes depend on."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_lab.mirror.fault_rules import CutFault, SlowFault, StatusFault
from aks_flex_node.api.contract import CORDONED_ANNOTATION
from tests.agents import exists, flex
from tests.chaos.attempts import Tried
from tests.chaos.expected_state import Wanted
from tests.chaos.invariants import HOME
from tests.chaos.operations import KINDS, PROVIDER, Operation, provider_restart
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.mirror.fault_rules import MirrorFault


WORK = "aks-flex-node-job"
LEAVE_SECONDS = 240.0
JOIN_SECONDS = 300.0


@dataclass(frozen=True)
class SoakNodeSpec(Wanted):
    """The desired state of a node, and whether its updates are paused."""

    paused: bool = False

    @property
    def properties(self) -> dict[str, Any]:
        document = super().properties
        settings = document["nodeConfig"]
        policy = {**settings["updatePolicy"], "paused": self.paused}
        return {**document, "nodeConfig": {**settings, "updatePolicy": policy}}


def join_all(lab: Lab, machines: Sequence[EdgeMachine]) -> list[Tried]:
    with ThreadPoolExecutor(len(machines)) as pool:
        return list(pool.map(lambda machine: _joined(lab, machine), machines))


def _joined(lab: Lab, machine: EdgeMachine) -> Tried:
    spec = SoakNodeSpec()
    managed = ManagedLabNode.make(lab, machine, **spec.properties)
    managed.join()
    return Tried(managed, replace(spec, secret=managed.principal.secret))


def leave_and_return(it: Tried) -> None:
    """Deletes the resource, waits until the machine is unbootstrapped, and joins it with a new resource."""
    _retry(it.managed.delete, "the provider accepts the deletion")
    until(lambda: has_left(it), f"{it.name} is unbootstrapped", LEAVE_SECONDS)
    it.managed.properties = dict(it.wanted.properties)
    _retry(it.managed.join, f"{it.name} joins again")


def has_left(it: Tried) -> bool:
    is_there = exists(it.machine, HOME)
    return not is_there and not it.machine.run("systemctl", "is-active", WORK, check=False).ok


def _retry(doing: Callable[[], object], what: str) -> None:
    """Retries an operation for a limited time, while services are unavailable."""
    end = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            doing()
        except (urllib3.exceptions.HTTPError, AssertionError) as error:
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {JOIN_SECONDS:.0f} s: {error}") from error
            time.sleep(1)
        else:
            return


def leftovers(it: Tried) -> list[str]:
    """Returns what must not exist at the end: running jobs, failed units, our cordon, partial downloads."""
    failed = it.shell("systemctl --failed --no-legend --plain | cut -d' ' -f1 | grep -v '^systemd-'", check=False)
    partial = it.shell("find /var/cache/aks-flex-node /opt/aks-flex-node -name '*.partial' 2>/dev/null", check=False)
    found = {
        f"failed units: {failed.split()}": bool(failed),
        f"partial files: {partial.split()}": bool(partial),
        "its job still runs": it.machine.run("systemctl", "is-active", WORK, check=False).ok,
        "the agent's cordon still exists": CORDONED_ANNOTATION
        in it.managed.node()["metadata"].get("annotations", {}),
        "`aks-flex-node health` fails": not flex(it.machine, "health", check=False).ok,
    }
    return [f"{it.name}: {sentence}" for sentence, true in found.items() if true]


LONGEST_FAULT = 20.0  # seconds
SLOW = 2 << 20  # bytes per second: a slow connection


def pause(chance: random.Random) -> Operation:
    paused = chance.random() < 0.5
    sentence = "its updates are paused" if paused else "its updates are resumed"
    return Operation(sentence, lambda it: it.want(paused=paused))


def recreation(_: random.Random) -> Operation:
    return Operation("its resource is deleted and created again", leave_and_return)


# Relative frequencies. Failures of the provider are faults, not operations.
OPERATIONS: dict[Callable[[random.Random], Operation], float] = {
    **{kind: float(weight) for kind, weight in KINDS.items() if kind is not provider_restart},
    pause: 2,
    recreation: 1,
}


def any_operation(chance: random.Random) -> Operation:
    (kind,) = chance.choices(list(OPERATIONS), list(OPERATIONS.values()))
    return kind(chance)


@dataclass(frozen=True)
class SoakFault:
    """A fault of a service that all nodes use, active for the duration of the context."""

    sentence: str
    lasts: Callable[[Lab], AbstractContextManager[None]]


@contextmanager
def provider_killed(lab: Lab) -> Iterator[None]:
    part = lab.provider.component()
    with PROVIDER:
        if running := lab.supervisor.process(part.name):
            running.kill(signal.SIGKILL)
            running.wait(5)
        try:
            yield
        finally:
            lab.supervisor.start(part)
            lab.supervisor.wait(part)


@contextmanager
def api_server_away(lab: Lab) -> Iterator[None]:
    lab.fault_proxy.set_enabled("api", on=False)
    try:
        yield
    finally:
        lab.fault_proxy.clear("api")


def mirror_spoiled(switch: MirrorFault) -> Callable[[Lab], AbstractContextManager[None]]:
    @contextmanager
    def lasts(lab: Lab) -> Iterator[None]:
        lab.mirror.add("*", switch)
        try:
            yield
        finally:
            lab.mirror.reset()

    return lasts


@contextmanager
def slow_line(lab: Lab) -> Iterator[None]:
    lab.fault_proxy.add("api", "latency", {"latency": 400, "jitter": 200})
    try:
        yield
    finally:
        lab.fault_proxy.clear("api")


FAULTS = (
    SoakFault("the provider is killed", provider_killed),
    SoakFault("the API server cannot be reached", api_server_away),
    SoakFault("the connection to the API server is slow", slow_line),
    SoakFault("the mirror is slow", mirror_spoiled(SlowFault(SLOW))),
    SoakFault("the mirror cuts every download", mirror_spoiled(CutFault())),
    SoakFault("the mirror rejects requests", mirror_spoiled(StatusFault(503))),
)
