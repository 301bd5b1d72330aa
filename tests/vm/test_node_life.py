"""Life of a managed node on a virtual machine: cgroup v2, AppArmor, swap, and a disk that loses unflushed writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents import differences, facts, flex, web_pod
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import Followed

pytestmark = pytest.mark.vm


def test_node_on_debian_12_survives_power_loss_and_unbootstraps(
    lab: Lab, follow_virtual: Callable[..., Followed]
) -> None:
    node = follow_virtual("vm-life")
    machine = node.machine
    before = machine.snapshot()
    assert swaps(machine) == ["/swapfile"]

    node.join()

    assert facts(machine, "verify") == {"clean": True, "differences": []}
    assert swaps(machine) == []
    assert machine.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").out.strip() == "cgroup2fs"
    assert machine.run("test", "-d", "/sys/fs/cgroup/kubepods.slice").ok
    pod = f"web-{node.name}"
    lab.cluster.apply(web_pod(pod, node.name))
    until(lambda: pod_runs(lab, pod), "a pod runs")

    node.follows(node.update(nodeConfig={"maxPods": 42}))
    until(lambda: node.node()["status"]["capacity"]["pods"] == "42", "the Node has the new setting")

    machine.reboot()
    assert swaps(machine) == []
    until(lambda: lab.cluster.node_ready(node.name), "the node is Ready after a reboot")

    version = node.update(nodeConfig={"maxPods": 43})
    until(lambda: job_runs(machine), "the update runs")
    machine.power_cycle()
    node.follows(version)
    until(lambda: node.node()["status"]["capacity"]["pods"] == "43", "the update is complete after a power loss")
    until(lambda: facts(machine, "verify", check=False)["clean"], "the node has its desired state")

    flex(machine, "unbootstrap", "--yes")
    assert swaps(machine) == ["/swapfile"]
    assert differences(before, machine) == []


def swaps(machine: EdgeMachine) -> list[str]:
    return machine.run("swapon", "--show=NAME", "--noheadings").out.split()


def pod_runs(lab: Lab, name: str) -> bool:
    found = lab.cluster.get("pod", name)
    return bool(found) and found["status"].get("phase") == "Running"


def job_runs(machine: EdgeMachine) -> bool:
    return machine.run("systemctl", "is-active", "aks-flex-node-job", check=False).ok
