"""Power lost at random moments of a join, an update and an unbootstrap: unflushed writes are lost, all converges.

`--power-cuts N` is the number of moments. `AKS_FLEX_CHAOS_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, facts, flex
from tests.wait import until_slow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import Followed
    from tests.vm.conftest import Figures

pytestmark = [pytest.mark.vm, pytest.mark.timeout(6 * 3600)]

# In emulation; a later moment is one at which the operation has ended, which is a case, too.
JOIN_SECONDS, UPDATE_SECONDS, UNBOOTSTRAP_SECONDS = 60.0, 25.0, 25.0
POWER_LOSS = "power loss"
SURVIVED = "moments of power loss survived"


class RandomCuts:
    """Cuts the power of a machine at random moments of an operation, until the number of cuts is used up."""

    def __init__(self, machine: EdgeMachine, number: int, seed: str) -> None:
        self.machine, self.left, self.done = machine, number, 0
        self.choice = random.Random(seed)  # noqa: S311 - moments, not secrets

    def during(self, seconds: float, *words: str) -> None:
        """Runs the agent and cuts the power meanwhile."""
        with ThreadPoolExecutor(1) as background:
            running = background.submit(flex, self.machine, *words, check=False)
            self.cut(seconds)
            running.result()

    def cut(self, seconds: float) -> None:
        moment = self.choice.uniform(0, seconds)
        time.sleep(moment)
        print(f"power is lost after {moment:.2f} s of {seconds:.0f} s")
        self.machine.power_cycle()
        self.left -= 1
        self.done += 1

    def rounds(self) -> Iterator[int]:
        number = 0
        while self.left > 0:
            number += 1
            yield number


def test_node_converges_after_power_loss_at_random_moments(
    lab: Lab, follow_virtual: Callable[..., Followed], figures: Figures, request: pytest.FixtureRequest
) -> None:
    seed = os.environ.get("AKS_FLEX_CHAOS_SEED") or secrets.token_hex(4)
    figures.record(POWER_LOSS, "AKS_FLEX_CHAOS_SEED", seed)
    node = follow_virtual("vm-power")
    machine = node.machine
    before = machine.snapshot()
    cuts = RandomCuts(machine, request.config.getoption("--power-cuts", 3), seed)
    for number in cuts.rounds():
        url = node.provider.put(node.name, node.body())
        cuts.during(JOIN_SECONDS, "agent", "--config-url", url)
        flex(machine, "agent", "--config-url", url)
        until_slow(lambda: lab.cluster.node_ready(node.name), "the node is Ready after a power loss in its join")
        assert clean(machine)
        figures.record(POWER_LOSS, SURVIVED, cuts.done)

        version = node.update(nodeConfig={"maxPods": 40 + number})
        cuts.cut(UPDATE_SECONDS)
        node.follows(version)
        until_slow(lambda: clean(machine), "the node has its desired state after a power loss in an update")
        capacity = str(40 + number)
        until_slow(lambda: node.node()["status"]["capacity"]["pods"] == capacity, "the Node has the setting")  # noqa: B023
        figures.record(POWER_LOSS, SURVIVED, cuts.done)

        cuts.during(UNBOOTSTRAP_SECONDS, "unbootstrap", "--yes")
        flex(machine, "unbootstrap", "--yes")
        machine.reboot()  # a module that the kernel loaded by itself stays until then
        assert differences(before, machine) == []
        figures.record(POWER_LOSS, SURVIVED, cuts.done)
        node.delete()
        until_slow(lambda: node.node() is None, "the Node is deleted")


def clean(machine: EdgeMachine) -> bool:
    return bool(facts(machine, "verify", check=False)["clean"])
