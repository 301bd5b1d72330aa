"""What may happen in a soak: to one node, beside what the chaos tests know; and to what all of them depend on."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab.mirror.switches import Cut, Slow, Status
from bench.soak.nodes import leave_and_return
from tests.chaos.operations import KINDS, PROVIDER, Operation, provider_restart

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.mirror.switches import Switch

LONGEST_FAULT = 20.0  # seconds
SLOW = 2 << 20  # bytes a second: an edge on a bad line


def pause(chance: random.Random) -> Operation:
    paused = chance.random() < 0.5
    sentence = "its updates are paused" if paused else "its updates go on"
    return Operation(sentence, lambda it: it.want(paused=paused))


def re_creation(_: random.Random) -> Operation:
    return Operation("its resource is deleted, and made again", leave_and_return)


# How often each comes, against the others. The provider is a matter of faults here.
OPERATIONS: dict[Callable[[random.Random], Operation], float] = {
    **{kind: float(weight) for kind, weight in KINDS.items() if kind is not provider_restart},
    pause: 2,
    re_creation: 1,
}


def any_operation(chance: random.Random) -> Operation:
    (kind,) = chance.choices(list(OPERATIONS), list(OPERATIONS.values()))
    return kind(chance)


@dataclass(frozen=True)
class Fault:
    """Something that all nodes depend on is not as it should be, from the first moment of the context to its last."""

    sentence: str
    lasts: Callable[[Lab], AbstractContextManager[None]]


@contextmanager
def provider_killed(lab: Lab) -> Iterator[None]:
    part = lab.provider.part()
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
    lab.faults.switch("api", on=False)
    try:
        yield
    finally:
        lab.faults.clear("api")


def mirror_spoiled(switch: Switch) -> Callable[[Lab], AbstractContextManager[None]]:
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
    lab.faults.add("api", "latency", {"latency": 400, "jitter": 200})
    try:
        yield
    finally:
        lab.faults.clear("api")


FAULTS = (
    Fault("the provider is killed", provider_killed),
    Fault("the API server cannot be reached", api_server_away),
    Fault("the way to the API server is slow", slow_line),
    Fault("the mirror is slow", mirror_spoiled(Slow(SLOW))),
    Fault("the mirror cuts every download", mirror_spoiled(Cut())),
    Fault("the mirror refuses", mirror_spoiled(Status(503))),
)
