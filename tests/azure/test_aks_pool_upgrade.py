"""The upgrade of a flex node pool with three machines: one Node after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.pools import LabPools
from aks_flex_lab.versions import NodeVersions
from tests.pool_node import PoolNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from concurrent.futures import Future

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

POOL, OLDER = "three", "1.35.4"
NAMES = ("three-1", "three-2", "three-3")
WATCH_SECONDS = 800
END = "upgrade-test-ended"


@pytest.fixture
def nodes(lab: Lab, add_machine: Add) -> Iterator[list[PoolNode]]:
    """Yields three nodes of one pool, which joined concurrently."""
    pools = LabPools(lab)
    pools.put(POOL, {"orchestratorVersion": OLDER, "upgradeSettings": {"maxUnavailable": "1"}})
    made = [PoolNode.make(lab, add_machine(name), POOL) for name in NAMES]
    with ThreadPoolExecutor(len(made)) as lanes:
        list(lanes.map(PoolNode.join, made))
    yield made
    for each in made:
        each.machine.stop()  # so that it does not leave the pool step by step
    lab.cluster.run("delete", "node", *NAMES, "--ignore-not-found", "--wait=false")
    pools.delete_machines(POOL, [each["name"] for each in pools.machines(POOL)])
    pools.delete(POOL)


def is_available(node: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and not node["spec"].get("unschedulable")


def observe(lab: Lab, names: Collection[str]) -> list[frozenset[str]]:
    """Returns the unavailable Nodes after each change of one of them, until one has the annotation END."""
    available: dict[str, bool] = {}
    seen: list[frozenset[str]] = []
    for event in lab.watch("/api/v1/nodes?watch=1", WATCH_SECONDS):
        node = event["object"]
        name = node["metadata"]["name"]
        if name not in names:
            continue
        available[name] = event["type"] != "DELETED" and is_available(node)
        if available.keys() == set(names):  # the first events are the Nodes as they are
            seen.append(frozenset(each for each, there in available.items() if not there))
        if END in node["metadata"].get("annotations", {}):
            return seen
    raise AssertionError("The watch ended before the test.")


@contextmanager
def observed(lab: Lab, nodes: Sequence[PoolNode]) -> Iterator[Future[list[frozenset[str]]]]:
    """Watches the Nodes meanwhile. The result has all changes, because a watch leaves none out."""
    names = [each.name for each in nodes]
    with ThreadPoolExecutor(1) as lane:
        seen = lane.submit(observe, lab, names)
        try:
            yield seen
        finally:
            lab.cluster.run("annotate", "node", *names, f"{END}=true", check=False)


def test_pool_upgrade_disturbs_one_node_at_a_time(lab: Lab, nodes: list[PoolNode]) -> None:
    until(lambda: all(each.is_ready for each in nodes), "the three Nodes are Ready")
    before, newest = {each.uid for each in nodes}, NodeVersions().kubernetes
    with observed(lab, nodes) as seen:
        LabPools(lab).put(POOL, {"orchestratorVersion": newest})  # returns when AKS has seen all new Nodes
    unavailable = seen.result()
    assert max(len(each) for each in unavailable) == 1, unavailable
    assert frozenset().union(*unavailable) == set(NAMES)  # each was disturbed
    assert unavailable[-1] == frozenset()

    assert {each.version for each in nodes} == {newest}
    assert all(each.is_ready for each in nodes)
    uids = {each.uid for each in nodes}
    assert len(uids) == len(nodes)
    assert not uids & before
    machines = [each["properties"] for each in LabPools(lab).machines(POOL)]
    assert {each["kubernetes"]["currentOrchestratorVersion"] for each in machines} == {newest}
    assert {each["provisioningState"] for each in machines} == {"Succeeded"}
    until(lambda: not any(each.pending for each in nodes), "no agent has anything left to do")
