"""Repairs of a long-lived node by a repeated `bootstrap` or by an unbootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import node_agent
from tests.agents import differences, disruption_budget, facts, flex, prepare, web_pod
from tests.remedies.catalogue import advice
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

CLEAN = {"clean": True, "differences": []}


@pytest.fixture(scope="module")
def node(lab: Lab, shared: EdgeMachine) -> Iterator[EdgeMachine]:
    flex(shared, "bootstrap")
    yield shared
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")


DRIFTS = {
    "a unit file is gone": "rm /etc/systemd/system/kubelet.service; systemctl daemon-reload",
    "a service is disabled": "systemctl disable node-problem-detector",
    "a service is stopped": "systemctl stop containerd",
    "a unit file is edited": "echo '# mine' >>/etc/systemd/system/containerd.service; systemctl daemon-reload",
    "modes and owners are changed": (
        "chmod 644 /var/lib/kubelet/config.yaml; chown nobody /opt/aks-flex-node/kubernetes/1.36.3/bin/kubelet"
    ),
    "all programs are gone": "rm -rf /opt/aks-flex-node/*/",
    "the network's file is gone": "rm /etc/cni/net.d/99-aks-flex-node.conflist",
    "the state is gone": "rm /var/lib/aks-flex-node/state.json",
    "the state is nonsense": """echo '{"phase": "Foo"}' >/var/lib/aks-flex-node/state.json""",
    "the ledger is gone": "rm /var/lib/aks-flex-node/ledger.json /opt/aks-flex-node/ledger.json",
    "the certificate is gone": "rm /var/lib/kubelet/pki/kubelet-client*",
}


@pytest.mark.parametrize("what", DRIFTS)
def test_bootstrap_repairs_drift(lab: Lab, node: EdgeMachine, what: str) -> None:
    node.run("sh", "-c", DRIFTS[what])

    flex(node, "bootstrap")

    assert facts(node, "verify", check=False) == CLEAN
    assert lab.cluster.node_ready(node.name)


def test_bootstrap_registers_deleted_node_again(lab: Lab, node: EdgeMachine) -> None:
    lab.cluster.run("delete", "node", node.name)

    flex(node, "bootstrap")

    assert lab.cluster.node_ready(node.name)


def test_bootstrap_applies_changed_labels_and_removes_old_ones(lab: Lab, node: EdgeMachine) -> None:
    for labels in ({"site": "north", "old": "yes"}, {"site": "south"}):
        node_agent.write_configuration(node, node_agent.configuration(lab, changes={"node": {"labels": labels}}))
        flex(node, "bootstrap")

    found = lab.cluster.get("node", node.name)["metadata"]["labels"]
    assert found["site"] == "south"
    assert "old" not in found


def test_bootstrap_repairs_component_while_api_server_is_down(lab: Lab, node: EdgeMachine) -> None:
    lab.fault_proxy.set_enabled("api", on=False)
    try:
        node.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml")
        flex(node, "bootstrap", "--only", "containerd")
        assert facts(node, "verify", check=False) == CLEAN
    finally:
        lab.fault_proxy.clear("api")


@pytest.mark.remedy("node-name-changed")
def test_bootstrap_refuses_to_rename_joined_node(lab: Lab, node: EdgeMachine) -> None:
    done = flex(node, "bootstrap", "--set", "node.name=another", check=False)

    assert done.code == 4
    assert "node-name-changed" in done.err
    assert facts(node, "verify", check=False) == CLEAN

    advice("node-name-changed", "Set `node.name` to the name that the machine joined with.")
    flex(node, "bootstrap", "--set", f"node.name={node.name}")
    assert lab.cluster.node_ready(node.name)


def test_bootstrap_succeeds_after_invalid_setting_is_removed(lab: Lab, node: EdgeMachine) -> None:
    broken = flex(node, "bootstrap", "--set", 'node.kubelet.extraConfig={"maxPods":"abc"}', check=False)
    assert "service-failed" in broken.err

    flex(node, "bootstrap")

    assert lab.cluster.node_ready(node.name)


def test_bootstrap_continues_when_output_pipe_closes(lab: Lab, node: EdgeMachine) -> None:
    node.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml")
    node.run("sh", "-c", "aks-flex-node bootstrap 2>&1 | head -1")

    until(lambda: facts(node, "status")["phase"] == "NodeJoined", "the join comes to its end")
    assert facts(node, "verify", check=False) == CLEAN


def test_unbootstrap_keeps_host_mounts_below_shared_bind_mounts(node: EdgeMachine) -> None:
    """As with a hostPath volume, below which the host mounts a disk later."""
    place, bound = "/srv/of-the-host", "/var/lib/kubelet/pods/a-pod/volumes/bound"
    script = f"""
        mkdir -p {place} {bound}
        mount -t tmpfs tmpfs {place}
        mount --make-shared {place}
        mkdir {place}/disk
        mount --rbind {place} {bound}
        mount -t tmpfs tmpfs {place}/disk
        echo kept >{place}/disk/file
        cat {bound}/disk/file
    """
    assert node.run("sh", "-ec", script).out == "kept\n"  # the host's mount is also below the bind mount
    try:
        flex(node, "unbootstrap", "--yes", "--drain-timeout", "5")
        shown = node.run(
            "sh", "-c", f"cat {place}/disk/file; grep -c {place} /proc/mounts; ls -d {bound}", check=False
        )
        assert shown.out.split() == ["kept", "2"]
    finally:
        node.run("sh", "-c", f"umount -R -l {bound}; umount -R -l {place}; rmdir {place}", check=False)
        flex(node, "bootstrap")


def test_unbootstrap_with_unevictable_pods_removes_only_own_resources(
    lab: Lab, add_machine: Callable[..., EdgeMachine]
) -> None:
    machine = add_machine("crowded")
    prepare(lab, machine)
    machine.run("sh", "-c", "ip netns add cni-podman; iptables -t nat -N CNI-podman; iptables -N MINE")
    before = machine.snapshot()
    flex(machine, "bootstrap")
    pods = [web_pod(f"stays-{number}", machine.name) for number in range(3)]
    lab.cluster.apply(*pods, disruption_budget("stays", least=3))
    words = ("wait", "--for=condition=Ready", *(f"pod/stays-{number}" for number in range(3)), "--timeout=240s")
    lab.cluster.run(*words, timeout=300)
    try:
        shown = flex(machine, "unbootstrap", "--dry-run").out
        said = flex(machine, "unbootstrap", "--yes", "--drain-timeout", "2").err
    finally:
        lab.cluster.run("delete", "pdb", "stays")

    assert "stop kubelet.service" in shown
    assert "pods not evicted within 2 s" in said
    assert differences(before, machine) == []
