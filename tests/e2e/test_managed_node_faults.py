"""Faults on a managed node: it remains a node, reports the cause, and continues afterwards."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.fault_rules import StatusFault
from aks_flex_node.agent.jobs.update.job import CONDITION_REASONS
from tests.agents import disruption_budget, flex, pod_runs, pods_of_budget, web_pod
from tests.client_certificates import client_pem
from tests.harness import Lines
from tests.managed_node import temporary_node
from tests.releases import broken_kubelet
from tests.remedies.catalogue import advice
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import ManagedLabNode

    Add = Callable[..., EdgeMachine]

BROKEN = "1.35.99"


@pytest.fixture
def broken(lab: Lab) -> Iterator[str]:
    """Yields a kubelet version on the mirror that exits immediately."""
    with broken_kubelet(lab, BROKEN) as version:
        yield version


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[ManagedLabNode]:
    """Yields one node for all tests of this file; each restores it, except for its versions."""
    with temporary_node(lab, "faults-1", versions={"kubernetes": "1.35.4", "runc": "1.4.0"}) as node:
        yield node


def reason(node: ManagedLabNode) -> str:
    return node.condition("ConfigApplied").get("reason", "")


@pytest.mark.promise
def test_update_with_broken_kubelet_rolls_back_and_is_not_retried(node: ManagedLabNode, broken: str) -> None:
    before = node.applied()

    failed = node.update(versions={**node.properties["versions"], "kubernetes": broken})

    until(lambda: node.condition("UpgradeFailed").get("status") == "True", "the failure is reported")
    assert node.provider.get(node.name)["status"]["failedConfigVersion"] == failed
    assert "this one was built to fail" in node.condition("UpgradeFailed")["message"]
    until(lambda: reason(node) == "ServiceFailed", "the configuration is reported as not applied")
    assert node.applied() == before
    assert node.kubelet_version() == "v1.35.4"
    assert not node.node()["spec"].get("unschedulable")
    assert node.status()["daemon"]["pending"]["reason"] == "service-failed"
    flex(node.machine, "health")

    # It is not retried, also not by a restarted agent.
    tried = node.machine.run("cat", "/var/lib/aks-flex-node/job-result.json").out
    node.machine.run("systemctl", "restart", "aks-flex-node")
    node.wait_until_daemon_is("Connected")
    time.sleep(2)
    assert node.machine.run("cat", "/var/lib/aks-flex-node/job-result.json").out == tried
    node.wait_until_applied(node.update(versions={**node.properties["versions"], "kubernetes": "1.35.4"}))
    until(lambda: node.condition("UpgradeFailed").get("status") == "False", "the failure is over")
    assert "failedConfigVersion" not in node.provider.get(node.name)["status"]


@pytest.mark.remedy("drain-timed-out")
def test_update_changes_nothing_while_disruption_budget_blocks_drain(lab: Lab, node: ManagedLabNode) -> None:
    lab.cluster.apply(web_pod("web-faults-1", node.name))
    lab.cluster.apply(disruption_budget("web-budget"))
    until(lambda: pod_runs(lab, "web-faults-1"), "the pod runs")
    until(lambda: pods_of_budget(lab, "web-budget") == 1, "the budget has counted it")
    versions = {**node.properties["versions"], "kubernetes": "1.36.3"}

    node.update(versions=versions, nodeConfig={"updatePolicy": {"drainTimeoutSeconds": 3}})

    until(lambda: reason(node) == "DrainTimedOut", "it is told that the pod does not go")
    assert CONDITION_REASONS["drain-timed-out"] == "DrainTimedOut"
    said = node.condition("ConfigApplied")["message"]
    assert "default/web-faults-1" in said
    assert "web-budget" in said
    assert node.kubelet_version() == "v1.35.4"
    assert not node.node()["spec"].get("unschedulable")
    assert lab.cluster.get("pod", "web-faults-1")["status"]["phase"] == "Running"

    advice("drain-timed-out", "Change the PodDisruptionBudget so that it allows an eviction")
    lab.cluster.run("delete", "pdb", "web-budget")
    advice("drain-timed-out", "increase `updatePolicy.drainTimeoutSeconds`")
    node.wait_until_applied(node.update(nodeConfig={"updatePolicy": {"drainTimeoutSeconds": 60}}))
    assert node.kubelet_version() == "v1.36.3"


def test_update_waits_for_maintenance_window_and_end_of_pause(node: ManagedLabNode) -> None:
    opens = datetime.now(timezone.utc) + timedelta(hours=3)
    window = {"start": f"{opens:%H:%M}", "durationMinutes": 15}
    versions = {**node.properties["versions"], "runc": "1.5.2"}

    node.update(
        versions=versions,
        nodeConfig={"labels": {"early": "yes"}, "updatePolicy": {"maintenanceWindow": window}},
    )

    until(lambda: reason(node) == "MaintenanceWindowClosed", "it waits for the window")
    assert f"{opens:%H:%M}" in node.condition("ConfigApplied")["message"]
    assert node.node()["metadata"]["labels"]["early"] == "yes"
    assert node.status()["versions"]["runc"] == "1.4.0"
    node.wait_until_applied(node.update(nodeConfig={}))
    assert node.status()["versions"]["runc"] == "1.5.2"

    node.update(nodeConfig={"labels": {"late": "yes"}, "updatePolicy": {"paused": True}})
    until(lambda: reason(node) == "Paused", "it is paused")
    node.machine.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml")
    until(lambda: node.condition("Drifted").get("status") == "True", "drift is told")
    assert "late" not in node.node()["metadata"]["labels"]
    assert "# was here" in node.machine.run("cat", "/etc/containerd/config.toml").out

    node.wait_until_applied(node.update(nodeConfig={"labels": {"late": "yes"}}))
    assert node.node()["metadata"]["labels"]["late"] == "yes"
    until(lambda: node.condition("Drifted").get("status") == "False", "and repaired")
    node.wait_until_applied(node.update(nodeConfig={}))


@pytest.mark.promise
def test_update_with_failed_download_or_full_disk_changes_nothing(lab: Lab, node: ManagedLabNode) -> None:
    begun = node.machine.run("systemctl", "show", "-p", "InvocationID", "kubelet", "containerd").out
    versions = node.properties["versions"]

    lab.mirror.add("*", StatusFault(503))
    try:
        node.update(versions={**versions, "cni": "1.7.1"}, query="&allowDowngrade=true")
        until(lambda: reason(node) == "ArtifactUnreachable", "it says that the mirror is away")
    finally:
        lab.mirror.reset()

    folder = "/var/lib/aks-flex-node/artifacts"
    node.machine.run("mount", "-t", "tmpfs", "-o", "size=1m", "none", folder)
    try:
        node.update(nodeConfig={"labels": {"again": "yes"}}, query="&allowDowngrade=true")
        until(lambda: reason(node) == "DiskFull", "it says that the disk is full")
    finally:
        node.machine.run("umount", folder)
    assert node.machine.run("systemctl", "show", "-p", "InvocationID", "kubelet", "containerd").out == begun
    assert not node.node()["spec"].get("unschedulable")
    node.wait_until_applied(node.update(versions=versions, nodeConfig={}))


def test_update_waits_for_unavailable_api_server(lab: Lab, node: ManagedLabNode) -> None:
    other = "1.5.2" if node.status()["versions"]["runc"] == "1.4.0" else "1.4.0"
    versions = {**node.properties["versions"], "runc": other}
    version = node.update(versions=versions, query="&allowDowngrade=true")
    until(lambda: stage(node) == "applying", "the upgrade is under way")
    lab.fault_proxy.set_enabled("api", on=False)
    try:
        until(lambda: flex(node.machine, "status", "--json", check=False).ok, "the agent answers")
        time.sleep(5)
    finally:
        lab.fault_proxy.clear("api")

    node.wait_until_applied(version)
    assert not node.node()["spec"].get("unschedulable")


def stage(node: ManagedLabNode) -> str:
    text = node.machine.run("cat", "/var/lib/aks-flex-node/update-journal.json", check=False).out
    return str(json.loads(text)["stage"]) if text.strip() else ""


def test_daemon_repairs_drift_and_reconnects_after_provider_outage(lab: Lab, node: ManagedLabNode) -> None:
    process = lab.supervisor.process("provider")
    assert process
    process.kill()
    node.wait_until_daemon_is("ProviderUnreachable")
    node.machine.run("sh", "-c", "rm /usr/local/bin/kubelet")
    until(lambda: flex(node.machine, "verify", check=False).code == 0, "and repairs what is broken meanwhile")
    flex(node.machine, "health")
    lab.up(Lines())
    node.wait_until_daemon_is("Connected")
    node.wait_until_applied(node.update(nodeConfig={"labels": {"back": "yes"}}))


def test_expired_kubelet_certificate_is_replaced(lab: Lab, node: ManagedLabNode) -> None:
    machine, folder = node.machine, "/var/lib/kubelet/pki"
    machine.run("systemctl", "stop", "aks-flex-node", "kubelet")
    expired = client_pem(datetime(2021, 1, 1, tzinfo=timezone.utc), node.name)
    machine.run("sh", "-c", f"umask 077; cat >{folder}/old.pem", input=expired)
    dated = f"{folder}/kubelet-client-2020-01-01-00-00-00.pem"
    machine.run("sh", "-c", f"rm {folder}/kubelet-client-* && mv {folder}/old.pem {dated}")
    machine.run("ln", "-s", dated, f"{folder}/kubelet-client-current.pem")

    machine.run("systemctl", "start", "kubelet", "aks-flex-node")

    until(lambda: good(node), "it has a certificate that is valid")
    node.wait_until_ready()
    flex(machine, "health")


def good(node: ManagedLabNode) -> bool:
    found = node.status()["certificate"]
    return found is not None and found["days"] > 1


def test_second_daemon_on_same_machine_is_refused(node: ManagedLabNode) -> None:
    machine = node.machine
    done = flex(machine, "daemon", check=False)
    assert done.code == 7
    assert "daemon-already-running" in done.err

    machine.run("systemctl", "stop", "aks-flex-node")
    machine.run("systemd-run", "--unit=foreground", "--collect", "aks-flex-node", "daemon")
    try:
        lock = "flock --nonblock /var/lib/aks-flex-node/daemon.lock true"
        until(lambda: not machine.run("sh", "-c", lock, check=False).ok, "it runs in the foreground")
    finally:
        machine.run("systemctl", "stop", "foreground")
        machine.run("systemctl", "start", "aks-flex-node")
