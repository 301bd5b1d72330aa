"""Damaged files, full disks and killed processes on a managed node: it is Ready again without anybody's help."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.agents import disruption_budget, flex, pod_runs, pods_of_budget, web_pod
from tests.damage.real_machine import MOMENTS, RealJudge, batches, cells_of
from tests.lab_machines import temporary_machine
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.snapshots import Snapshot

PKI = "/var/lib/kubelet/pki"
CLIENT = f"{PKI}/kubelet-client-current.pem"
STATE = "/var/lib/aks-flex-node"


@pytest.fixture(scope="module")
def joined(lab: Lab) -> Iterator[tuple[ManagedLabNode, Snapshot]]:
    """Yields one node for all tests of this file, and its machine before the join. Each test restores the node,
    except for its versions.
    """
    with temporary_machine(lab, "damage-1") as machine:
        found = ManagedLabNode.make(lab, machine, versions={"kubernetes": "1.35.4"})
        before = machine.snapshot()
        found.join()
        until(lambda: is_ready(found), "the node is Ready")
        yield found, before
        found.delete()


@pytest.fixture(scope="module")
def node(joined: tuple[ManagedLabNode, Snapshot]) -> ManagedLabNode:
    return joined[0]


@pytest.fixture(scope="module")
def before(joined: tuple[ManagedLabNode, Snapshot]) -> Snapshot:
    return joined[1]


def is_ready(node: ManagedLabNode) -> bool:
    return node.lab.cluster.node_ready(node.name)


def uid(node: ManagedLabNode) -> str:
    return str((node.node() or {}).get("metadata", {}).get("uid", ""))


def run(node: ManagedLabNode, script: str) -> str:
    return node.machine.run("sh", "-c", script).out.strip()


def healthy(node: ManagedLabNode) -> bool:
    return is_ready(node) and all(flex(node.machine, each, check=False).ok for each in ("verify", "health"))


def while_stopped(node: ManagedLabNode, script: str) -> None:
    run(node, f"systemctl stop aks-flex-node; {script}; systemctl start aks-flex-node")


@pytest.mark.parametrize("size", [0, 700])
def test_damaged_client_certificate_is_replaced(node: ManagedLabNode, size: int) -> None:
    before = run(node, f"readlink -f {CLIENT}")
    node.machine.run("systemctl", "stop", "aks-flex-node")  # to see what a command says
    run(node, f"truncate -s {size} $(readlink -f {CLIENT}); systemctl restart kubelet || true")
    said = flex(node.machine, "verify", check=False)
    assert (said.code, f"{CLIENT}" in said.out) == (1, True), said
    node.machine.run("systemctl", "start", "aks-flex-node")
    until(lambda: run(node, f"readlink -f {CLIENT}") not in {before, CLIENT}, "the kubelet has a new certificate")
    until(lambda: healthy(node), "the node is Ready")


def test_damaged_serving_certificate_is_replaced(node: ManagedLabNode) -> None:
    names = {"kubelet.crt", "kubelet.key", "kubelet-server-current.pem"} & set(run(node, f"ls {PKI}").split())
    assert names
    for name in sorted(names):
        run(node, f"truncate -s 0 $(readlink -f {PKI}/{name})")
        there = f"test -s {PKI}/{name} && echo new; true"
        until(partial(lambda script: run(node, script) == "new", there), "it is created again")
        until(lambda: healthy(node), "the node is Ready")


def test_empty_kubeconfig_is_replaced(node: ManagedLabNode) -> None:
    run(node, "truncate -s 0 /var/lib/kubelet/kubeconfig; systemctl restart kubelet || true")
    until(lambda: "server:" in run(node, "cat /var/lib/kubelet/kubeconfig || true"), "the kubelet has a kubeconfig")
    until(lambda: healthy(node), "the node is Ready")


def test_empty_configuration_does_not_stop_the_daemon(node: ManagedLabNode) -> None:
    before = run(node, f"sha256sum < {STATE}/current-config.json")
    for damage in ("truncate -s 0", "truncate -s 99"):
        while_stopped(node, f"{damage} {STATE}/current-config.json")
        until(lambda: run(node, f"sha256sum < {STATE}/current-config.json") == before, "it is restored from its copy")
    node.wait_until_daemon_is("Connected")

    # Without a copy, the daemon reports it, but changes nothing: the configuration applied last has no secrets.
    identity = run(node, "sha256sum /var/lib/kubelet/identity.json; true")
    run(node, f"cp {STATE}/current-config.json /root/kept.json")
    while_stopped(node, f"rm {STATE}/current-config.copy.json; : >{STATE}/current-config.json")
    restarts = node.machine.run("systemctl", "show", "-P", "NRestarts", "aks-flex-node").out
    said = "journalctl -u aks-flex-node -n 50 -o cat"
    until(lambda: "is damaged and has no copy" in run(node, said), "the damage is named")
    assert "is damaged and has no copy" in flex(node.machine, "status").out
    assert run(node, "sha256sum /var/lib/kubelet/identity.json; true") == identity
    assert node.machine.run("systemctl", "show", "-P", "NRestarts", "aks-flex-node").out == restarts
    assert is_ready(node)
    while_stopped(node, f"mv /root/kept.json {STATE}/current-config.json")
    node.wait_until_daemon_is("Connected")


def test_garbage_in_state_files_does_not_stop_an_update(node: ManagedLabNode) -> None:
    names = (
        *("update-journal.json", "job-result.json", "failed-config.json"),
        *("config-journal.json", "daemon-state.json", "state.json"),
    )
    run(node, "systemctl stop aks-flex-node")
    for name in names:
        run(node, f"head -c 99 /dev/urandom >{STATE}/{name}")
    run(node, "systemctl start aks-flex-node")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"damage": "yes"}}))
    until(lambda: healthy(node), "the node is healthy")


def test_node_deleted_during_the_health_check_is_no_fault_of_the_version(lab: Lab, node: ManagedLabNode) -> None:
    before = uid(node)
    version = node.update(versions={"kubernetes": "1.36.3"})
    until(
        lambda: run(node, "readlink -f /usr/local/bin/kubelet").count("1.36.3") == 1, "the new kubelet is installed"
    )
    until(lambda: node.kubelet_version() == "v1.36.3", "the new kubelet has reported")
    lab.cluster.run("delete", "node", node.name, "--wait=false")
    until(lambda: uid(node) not in {"", before}, "the Node is registered again")
    node.wait_until_applied(version)
    assert node.condition("UpgradeFailed").get("status") != "True"
    until(lambda: healthy(node), "the node is healthy")


def slow(lab: Lab, node: ManagedLabNode) -> dict[str, Any]:
    """Starts a drain that a disruption budget holds; returns the budget."""
    lab.cluster.apply(web_pod(f"web-{node.name}", node.name))
    budget = disruption_budget(f"budget-{node.name}")
    lab.cluster.apply(budget)
    until(lambda: pod_runs(lab, f"web-{node.name}"), "the pod runs")
    until(lambda: pods_of_budget(lab, f"budget-{node.name}") == 1, "the budget has counted it")
    return budget


def test_killed_job_continues_and_a_stopped_service_stays_stopped(lab: Lab, node: ManagedLabNode) -> None:
    budget = slow(lab, node)
    version = node.update(query="&allowDowngrade=true", versions={"kubernetes": "1.35.4"})
    until(lambda: node.node()["spec"].get("unschedulable"), "the drain has begun")
    first = node.machine.run("systemctl", "show", "-P", "MainPID", "aks-flex-node-job").out.strip()
    node.machine.run("kill", "-9", first)
    until(
        lambda: (
            node.machine.run("systemctl", "show", "-P", "MainPID", "aks-flex-node-job").out.strip()
            not in {"", "0", first}
        ),
        "the job runs again",
    )
    events = run(node, "journalctl -u aks-flex-node -n 200 -o cat")
    assert "The update job was killed by signal 9" in events

    # A person stops the service during the update: the update is completed, and the service stays stopped.
    node.machine.run("systemctl", "stop", "aks-flex-node")
    lab.cluster.run("delete", "pdb", budget["metadata"]["name"])
    until(lambda: not node.machine.run("systemctl", "is-active", "aks-flex-node-job", check=False).ok, "the job ends")
    stored = json.loads(run(node, f"cat {STATE}/current-config.json"))
    assert stored["configVersion"] == version
    assert not node.machine.run("systemctl", "is-active", "aks-flex-node", check=False).ok
    node.machine.run("systemctl", "start", "aks-flex-node")
    node.wait_until_applied(version)
    until(lambda: healthy(node), "the node is healthy")


def test_runtime_without_cri_is_restarted_when_there_is_space(node: ManagedLabNode) -> None:
    """A containerd that starts on a full disk runs without its CRI plugin."""
    folder = "/var/lib/containerd"
    fill = f"chmod 700 {folder}; dd if=/dev/zero of={folder}/filler bs=1M status=none"
    run(node, f"systemctl stop kubelet containerd; mount -t tmpfs -o size=24m tmpfs {folder}; {fill} || true")
    run(node, "systemctl start containerd kubelet || true")
    try:
        until(lambda: "is full" in run(node, "journalctl -u aks-flex-node -n 100 -o cat"), "the full disk is named")
        run(node, f"rm {folder}/filler")
        until(lambda: is_ready(node), "the node is Ready once there is space")
        until(lambda: run(node, "ctr plugins list | grep -c ' cri .* ok'; true") == "1", "the CRI is served")
    finally:
        run(node, f"systemctl stop kubelet containerd; umount -R -l {folder}; systemctl start containerd kubelet")
    until(lambda: healthy(node), "the node is healthy")


def test_seeded_damages_are_repaired_or_named(node: ManagedLabNode, before: Snapshot) -> None:
    """About a dozen cells of the damage matrix; `tests/long/test_damage_matrix.py` runs all."""
    judge = RealJudge(node, before)
    until(judge.is_whole, "the node is whole")
    first = itertools.islice(batches(cells_of(node)), len(MOMENTS))
    problems = [problem for batch in first for problem in judge.find_problems(batch)]
    assert problems == [], "\n".join(problems)
