"""A machine joins with the baseline script, runs a pod, and recovers from reboots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.baseline.join import BaselineSettings, join
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from tests.wait import answers, boot_id, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

pytestmark = pytest.mark.long

MIXES = {
    "Debian 12, newest": (DebianRelease.BOOKWORM, NodeVersions()),
    "Debian 13, older": (
        DebianRelease.TRIXIE,
        NodeVersions(kubernetes="1.35.4", containerd="1.7.29", runc="1.4.0", cni="1.7.1"),
    ),
}


@pytest.mark.parametrize("mix", MIXES)
def test_baseline_node_survives_power_cut_and_reboot(lab: Lab, add_machine: Add, mix: str) -> None:
    system, versions = MIXES[mix]
    name = f"node-{system.value}"
    machine = add_machine(name, system, "factory")

    joined = join(lab, machine, BaselineSettings(versions))

    info = lab.cluster.get("node", name)["status"]["nodeInfo"]
    assert list(joined.phases) == ["fetch", "unpack", "configure", "containerd", "kubelet", "node", "pod"]
    assert info["kubeletVersion"] == f"v{versions.kubernetes}"
    assert info["containerRuntimeVersion"] == f"containerd://{versions.containerd}"
    until(lambda: answers(lab, machine), "the pod answers")
    assert "busybox" in lab.cluster.run("exec", f"web-{name}", "--", "ls", "/bin").out
    assert lab.cluster.run("exec", f"web-{name}", "--", "nslookup", "dl.k8s.io").out.count("198.18.0.30") == 1

    for happens in (machine.power_cycle, machine.reboot):
        before = boot_id(lab, name)
        happens()
        until(lambda before=before: boot_id(lab, name) != before, "the node reports its new boot")  # type: ignore[misc]
        until(lambda: lab.cluster.node_ready(name), "the node is Ready")
        until(lambda: answers(lab, machine), "the pod answers again")
