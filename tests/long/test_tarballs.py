"""kubelet, kubectl and kubeadm from one tarball: same paths, and a node can switch to it from single files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab import node_agent
from tests.agents import differences, facts, flex, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

TARBALL = "https://dl.k8s.io/v%s/kubernetes-node-linux-%s.tar.gz"
PROGRAMS = "for one in kubelet kubectl kubeadm; do readlink -e /usr/local/bin/$one; done"


def test_tarball_installs_same_files_as_single_downloads(lab: Lab, add_machine: Callable[..., EdgeMachine]) -> None:
    machine = add_machine("tarball")
    prepare(lab, machine)
    before = machine.snapshot()
    by_tarball = node_agent.configuration(lab, changes={"kubernetes": {"urlTemplate": TARBALL}})

    flex(machine, "bootstrap")
    places = machine.run("sh", "-c", PROGRAMS).out
    kubelet = machine.run("pidof", "kubelet").out
    node_agent.write_configuration(machine, by_tarball)
    flex(machine, "bootstrap")
    assert machine.run("sh", "-c", PROGRAMS).out == places
    assert machine.run("pidof", "kubelet").out == kubelet
    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")

    flex(machine, "bootstrap")
    assert machine.run("sh", "-c", PROGRAMS).out == places
    assert facts(machine, "verify") == {"clean": True, "differences": []}
    assert lab.cluster.node_ready(machine.name)
    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    flex(machine, "bootstrap", "--only", "tools")
    assert machine.run("kubectl", "version", "--client").ok
    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    node_agent.write_configuration(machine, node_agent.configuration(lab))
    assert [one for one in differences(before, machine) if "/etc/aks-flex-node/config.json" not in one] == []
