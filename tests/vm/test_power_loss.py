"""Power lost at random moments of a join, an update and an unbootstrap: unflushed writes are lost, all converges.

`--power-cuts N` is the number of moments, rounded up to rounds of six. `AKS_FLEX_CHAOS_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, flex
from tests.wait import until_slow

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import ManagedLabNode
    from tests.vm.conftest import Figures

pytestmark = [pytest.mark.vm, pytest.mark.timeout(6 * 3600)]

JOIN_CUTS, UPDATE_CUTS, UNBOOTSTRAP_CUTS = 2, 3, 1  # of each round of six; a join takes longest
RUN = "power loss"


class PowerLossRun:
    """Operations of a managed node, whose power is lost at random moments of them."""

    def __init__(self, lab: Lab, node: ManagedLabNode, figures: Figures, seed: str) -> None:
        self.lab, self.node, self.figures = lab, node, figures
        self.choice = random.Random(seed)  # noqa: S311 - moments, not secrets
        self.seconds: dict[str, float] = {}  # of each operation without a power loss, which is measured first
        self.survived = 0
        self.max_pods = 40

    @property
    def machine(self) -> EdgeMachine:
        return self.node.machine

    def join(self, cuts: int) -> None:
        words = ("agent", "--config-url", self.node.provider.put(self.node.name, self.node.body()))
        for _ in range(cuts):
            self._cut_during("join", *words)
        self._measure("join", lambda: self._run_agent(*words))
        until_slow(lambda: self.lab.cluster.node_ready(self.node.name), "the node is Ready")
        until_slow(self.node.is_clean, "the node has its desired state after its join")
        self._count(cuts)

    def update(self, *, cut: bool) -> None:
        self.max_pods += 1
        version = self.node.update(nodeConfig={"maxPods": self.max_pods})
        if cut:
            self._cut("update")
        self._measure("update", lambda: self.node.wait_until_applied(version))
        until_slow(lambda: self.node.max_pods() == self.max_pods, "the Node has the new setting")
        until_slow(self.node.is_clean, "the node has its desired state after an update")
        self._count(int(cut))

    def unbootstrap(self, cuts: int) -> None:
        words = ("unbootstrap", "--yes")
        for _ in range(cuts):
            self._cut_during("unbootstrap", *words)
        self._measure("unbootstrap", lambda: self._run_agent(*words))
        self.machine.reboot()  # modules that the kernel loaded by itself stay until then
        self._count(cuts)
        self.node.delete()
        until_slow(lambda: self.node.node() is None, "the Node is deleted")

    def _run_agent(self, *words: str) -> None:
        """Runs the agent, again while its daemon, started by the boot, is changing the machine."""
        until_slow(lambda: not self._is_locked_during(words), f"no other process of the agent delays {words[0]}")

    def _is_locked_during(self, words: tuple[str, ...]) -> bool:
        done = flex(self.machine, *words, check=False)
        assert done.ok or "agent-locked" in done.err, f"{words[0]}: exit {done.code}\n{done.out}\n{done.err}"
        return not done.ok

    def _cut_during(self, operation: str, *words: str) -> None:
        """Runs the agent and cuts the power meanwhile."""
        with ThreadPoolExecutor(1) as background:
            running = background.submit(flex, self.machine, *words, check=False)
            self._cut(operation)
            running.result()

    def _cut(self, operation: str) -> None:
        moment = self.choice.uniform(0, self.seconds[operation])
        time.sleep(moment)
        print(f"power is lost after {moment:.2f} s of {self.seconds[operation]:.0f} s of the {operation}", flush=True)
        self.machine.power_cycle()

    def _measure(self, operation: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        if operation not in self.seconds:  # the first one, without a power loss
            self.seconds[operation] = time.monotonic() - began
            self.figures.record(RUN, f"{operation} without a power loss", round(self.seconds[operation], 1))

    def _count(self, cuts: int) -> None:
        self.survived += cuts
        self.figures.record(RUN, "moments of power loss survived", self.survived)


def test_node_converges_after_power_loss_at_random_moments(
    lab: Lab, add_virtual_node: Callable[..., ManagedLabNode], figures: Figures, request: pytest.FixtureRequest
) -> None:
    seed = os.environ.get("AKS_FLEX_CHAOS_SEED") or secrets.token_hex(4)
    figures.record(RUN, "AKS_FLEX_CHAOS_SEED", seed)
    run = PowerLossRun(lab, add_virtual_node("vm-power"), figures, seed)
    machine = run.machine
    before = machine.snapshot()
    cuts = request.config.getoption("--power-cuts")

    run.join(cuts=0)
    run.update(cut=False)
    run.unbootstrap(cuts=0)
    assert not (left := differences(before, machine)), "\n".join(left)

    while run.survived < cuts:
        run.join(JOIN_CUTS)
        for _ in range(UPDATE_CUTS):
            run.update(cut=True)
        run.unbootstrap(UNBOOTSTRAP_CUTS)
        assert not (left := differences(before, machine)), "\n".join(left)
