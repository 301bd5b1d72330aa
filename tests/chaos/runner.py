"""Operations on several nodes side by side, and none waits until the one before has had its effect."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.chaos.attempts import Tried
from tests.chaos.invariants import settle
from tests.chaos.operations import any_one, label

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.chaos.operations import Operation

PAUSE = 1.5  # at most, between two operations
QUIET_SECONDS = 240.0  # a work that failed is tried again after one minute, and after two more


@contextmanager
def joined(lab: Lab, machines: Sequence[EdgeMachine]) -> Iterator[list[Tried]]:
    """A node of each machine; what the provider knows of them goes with them."""
    with ThreadPoolExecutor(len(machines)) as pool:
        nodes = list(pool.map(lambda machine: Tried.joined(lab, machine), machines))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.lane.shutdown(cancel_futures=True)
            node.followed.delete()


def storm(nodes: Sequence[Tried], chance: random.Random, count: int) -> None:
    """So many operations; then it gets quiet, and everything is as it was asked for last."""
    began = time.monotonic()
    under_way = []
    for number in range(1, count + 1):
        node, operation = chance.choice(nodes), any_one(chance)
        print(f"{time.monotonic() - began:5.1f} s  {number:3} {node.name}: {operation.sentence}", flush=True)
        under_way.append(_issue(node, operation))
        time.sleep(chance.uniform(0, PAUSE))
    # What was given up, because something spoiled it again and again, is tried anew with the next change.
    under_way += [_issue(node, label(chance)) for node in nodes]
    for each in under_way:
        each.result()
    print(f"{time.monotonic() - began:5.1f} s  all are done; now it is to get quiet", flush=True)
    settle(nodes, QUIET_SECONDS)
    print(f"{time.monotonic() - began:5.1f} s  all is as it was asked for", flush=True)


def _issue(node: Tried, operation: Operation) -> Future[object]:
    return node.lane.submit(operation.do, node)
