"""Combinations of Debian release and versions, and the life cycle of a node on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from tests.agents import differences, facts, flex, prepare, web_pod
from tests.wait import boot_id, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

OLDER = NodeVersions(kubernetes="1.35.4", containerd="1.7.29", runc="1.4.0", cni="1.7.1")
MIXES = {
    "bookworm-2": (DebianRelease.BOOKWORM, NodeVersions()),
    "bookworm-1": (DebianRelease.BOOKWORM, OLDER),
    "trixie-2": (DebianRelease.TRIXIE, NodeVersions()),
    "trixie-1": (DebianRelease.TRIXIE, OLDER),
}


def lives(lab: Lab, add_machine: Add, mix: str) -> None:
    """Joins a machine, cuts its power, reboots it, unbootstraps it without leftovers, and joins it again."""
    system, versions = MIXES[mix]
    name = f"agent-{mix}"
    machine = add_machine(name, system, "factory")
    prepare(lab, machine, versions=versions)
    before = machine.snapshot()

    flex(machine, "agent", "--config", "/etc/aks-flex-node/config.json")

    info = lab.cluster.get("node", name)["status"]["nodeInfo"]
    assert info["kubeletVersion"] == f"v{versions.kubernetes}"
    assert info["containerRuntimeVersion"] == f"containerd://{versions.containerd}"
    assert facts(machine, "verify") == {"clean": True, "differences": []}
    runs_pods(lab, machine)

    for happens in (machine.power_cycle, machine.reboot):
        boot = boot_id(lab, name)
        happens()
        until(lambda boot=boot: boot_id(lab, name) != boot, "the node reports its new boot")  # type: ignore[misc]
        until(lambda: lab.cluster.node_ready(name), "the node is Ready")
        until(lambda: _reach_one_another(lab, name), "pods reach one another again")
    until(lambda: facts(machine, "health", check=False)["healthy"], "the node is healthy")
    assert facts(machine, "verify", check=False) == {"clean": True, "differences": []}

    said = flex(machine, "unbootstrap", "--yes").err
    assert f"kubectl delete node {name}" in said
    assert not (left := differences(before, machine)), left

    until(lambda: lab.cluster.get("node", name) is None, "the provider takes the node out of the cluster")
    flex(machine, "bootstrap")
    assert lab.cluster.node_ready(name)


def runs_pods(lab: Lab, machine: EdgeMachine) -> None:
    """Runs two pods on one node: they resolve names, reach each other, and support exec."""
    name = machine.name
    lab.cluster.apply(web_pod(f"one-{name}", name), web_pod(f"two-{name}", name))
    until(lambda: _reach_one_another(lab, name), "pods reach one another")
    asked = lab.cluster.run("exec", f"one-{name}", "--", "nslookup", "dl.k8s.io").out
    assert asked.count("198.18.0.30") == 1
    pods = [f"{pod}-{name}" for pod in ("one", "two")]
    until(lambda: all(_address(lab, pod) for pod in pods), "the kubelet tells the addresses of both")
    cidr = lab.cluster.get("node", name)["spec"]["podCIDR"].rsplit(".", 1)[0]
    assert all(_address(lab, pod).startswith(cidr) for pod in pods)


def _address(lab: Lab, pod: str) -> str:
    found = lab.cluster.get("pod", pod)
    return str(found["status"].get("podIP", "")) if found else ""


def _reach_one_another(lab: Lab, name: str) -> bool:
    other = _address(lab, f"two-{name}")
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {other} 80"
    return (
        bool(other) and "It works" in lab.cluster.run("exec", f"one-{name}", "--", "sh", "-c", ask, check=False).out
    )
