"""Life of a managed node on a virtual machine: cgroup v2, AppArmor, swap, and a disk that loses unflushed writes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from tests.agents import differences, facts, flex, web_pod
from tests.wait import boot_id, until_slow

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import Followed
    from tests.vm.conftest import Figures

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("system", list(DebianRelease))
def test_node_survives_power_loss_and_unbootstraps(
    lab: Lab, follow_virtual: Callable[..., Followed], figures: Figures, system: DebianRelease
) -> None:
    run = f"{system.value} amd64"

    def phase(name: str) -> AbstractContextManager[None]:
        return figures.phase(run, name)

    with phase("create a machine, boot it, install the agent"):
        node = follow_virtual(f"vm-{system.value}", system)
    machine = node.machine
    figures.record(run, "accelerator", machine.record.accelerator)
    before = machine.snapshot()
    assert swaps(machine) == ["/swapfile"]

    with phase("join by URL, until Ready"):
        node.join()
    with phase("verify"):
        assert facts(machine, "verify") == {"clean": True, "differences": []}
    assert swaps(machine) == []
    assert machine.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").out.strip() == "cgroup2fs"
    assert machine.run("test", "-d", "/sys/fs/cgroup/kubepods.slice").ok
    pod = f"web-{node.name}"
    with phase("pod runs"):
        lab.cluster.apply(web_pod(pod, node.name))
        until_slow(lambda: pod_runs(lab, pod), "a pod runs")

    with phase("managed update"):
        node.follows(node.update(nodeConfig={"maxPods": 42}))
        until_slow(lambda: capacity(node) == "42", "the Node has the new setting")

    with phase("reboot, until Ready"):
        with phase("reboot, until multi-user"):
            machine.reboot()
        until_slow(lambda: booted_and_ready(lab, machine), "the node is Ready after a reboot")
    assert swaps(machine) == []

    version = node.update(nodeConfig={"maxPods": 43})
    until_slow(lambda: job_runs(machine), "the update runs")
    with phase("power lost in an update, until the update is complete"):
        machine.power_cycle()
        node.follows(version)
        until_slow(lambda: capacity(node) == "43", "the update is complete after a power loss")
        until_slow(lambda: facts(machine, "verify", check=False)["clean"], "the node has its desired state")

    with phase("unbootstrap"):
        flex(machine, "unbootstrap", "--yes")
    figures.record(run, "load of the host (15 minutes)", f"{os.getloadavg()[2]:.1f}")
    assert swaps(machine) == ["/swapfile"]
    assert differences(before, machine) == []


def capacity(node: Followed) -> str:
    return str(node.node()["status"]["capacity"]["pods"])


def booted_and_ready(lab: Lab, machine: EdgeMachine) -> bool:
    """Returns whether the Node is Ready in the present boot of the machine; until then, it can be the last one."""
    now = machine.run("cat", "/proc/sys/kernel/random/boot_id").out.strip()
    return boot_id(lab, machine.name) == now and lab.cluster.node_ready(machine.name)


def swaps(machine: EdgeMachine) -> list[str]:
    return machine.run("swapon", "--show=NAME", "--noheadings").out.split()


def pod_runs(lab: Lab, name: str) -> bool:
    found = lab.cluster.get("pod", name)
    return bool(found) and found["status"].get("phase") == "Running"


def job_runs(machine: EdgeMachine) -> bool:
    return machine.run("systemctl", "is-active", "aks-flex-node-job", check=False).ok
