"""Runs operations on several nodes concurrently, without waiting for the effect of each."""

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

PAUSE = 1.5  # maximum seconds between two operations
QUIET_SECONDS = 240.0  # a failed job is retried after one minute, and again after two


@contextmanager
def joined(lab: Lab, machines: Sequence[EdgeMachine]) -> Iterator[list[Tried]]:
    """Joins each machine as a node; deletes their resources afterwards."""
    with ThreadPoolExecutor(len(machines)) as pool:
        nodes = list(pool.map(lambda machine: Tried.joined(lab, machine), machines))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.lane.shutdown(cancel_futures=True)
            node.managed.delete()


def storm(nodes: Sequence[Tried], chance: random.Random, count: int) -> None:
    """Runs a number of operations, then waits until all nodes have their desired state."""
    began = time.monotonic()
    under_way = []
    for number in range(1, count + 1):
        node, operation = chance.choice(nodes), any_one(chance)
        print(f"{time.monotonic() - began:5.1f} s  {number:3} {node.name}: {operation.sentence}", flush=True)
        under_way.append(_issue(node, operation))
        time.sleep(chance.uniform(0, PAUSE))
    # A change that the daemon gave up after repeated failures is retried with the next change.
    under_way += [_issue(node, label(chance)) for node in nodes]
    for each in under_way:
        each.result()
    print(f"{time.monotonic() - began:5.1f} s  all are done; now it is to get quiet", flush=True)
    settle(nodes, QUIET_SECONDS)
    print(f"{time.monotonic() - began:5.1f} s  all is as it was asked for", flush=True)


def _issue(node: Tried, operation: Operation) -> Future[object]:
    return node.lane.submit(operation.do, node)
