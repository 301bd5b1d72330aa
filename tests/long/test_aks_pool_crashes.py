"""Kills the agent and cuts the power at random moments of a pool node's life, again and again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pools import LabPools
from tests.chaos import pool_cuts
from tests.chaos.seeds import seeded
from tests.pool_node import PoolNode
from tests.releases import broken_kubelet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

POOL = "crashes"
# A power cut or a crash in each of four phases, in about two minutes for a round.
ROUNDS = int(os.environ.get("AKS_FLEX_POOL_ROUNDS", "15"))


@pytest.fixture
def node(lab: Lab, add_machine: Callable[..., EdgeMachine]) -> Iterator[PoolNode]:
    pools = LabPools(lab)
    pools.put(POOL, {"orchestratorVersion": pool_cuts.OLDER})
    made = PoolNode.make(lab, add_machine("pool-crashes"), POOL)
    made.poll_every(pool_cuts.POLL_SECONDS)
    with broken_kubelet(lab, pool_cuts.BROKEN):
        yield made
    for each in pools.machines(POOL):
        pools.delete_machines(POOL, [each["name"]])
    pools.delete(POOL)


@pytest.mark.timeout(4 * 3600)
def test_pool_node_survives_crashes_and_power_cuts_at_any_moment(node: PoolNode) -> None:
    chance, before = seeded(1), node.machine.snapshot()
    for number in range(1, ROUNDS + 1):
        print(f"round {number} of {ROUNDS}", flush=True)
        pool_cuts.interrupted_join(node, chance)
        pool_cuts.interrupted_rollback(node, chance)
        pool_cuts.interrupted_upgrade(node, chance)
        pool_cuts.interrupted_removal(node, chance, before)
