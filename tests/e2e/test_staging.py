"""Staging on a real managed node: the update of a staged configuration needs no mirror."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.mirror.fault_rules import StatusFault
from aks_flex_node.agent.paths import CURRENT_CONFIG, STAGING_CONFIG
from tests.agents import exists, flex
from tests.managed_node import temporary_node
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from tests.managed_node import ManagedLabNode

STAGED = "/var/lib/aks-flex-node/artifacts/next"
OLD = {"kubernetes": "1.35.4", "runc": "1.4.0"}
NEW = {"kubernetes": "1.36.3", "runc": "1.5.2"}


@pytest.fixture
def node(lab: Lab) -> Iterator[ManagedLabNode]:
    with temporary_node(lab, "staging-1", versions=OLD) as node:
        yield node


def orders(node: ManagedLabNode, versions: dict[str, str]) -> None:
    """Writes the next configuration, as if the provider had sent it."""
    config: dict[str, Any] = json.loads(node.machine.run("cat", CURRENT_CONFIG).out)["config"]
    for name, version in versions.items():
        config[name] = {**config.get(name, {}), "version": version}
    config["azure"].pop("bootstrapToken", None)
    config["azure"]["servicePrincipal"].pop("clientSecret", None)  # the provider does not send it
    text = json.dumps({"poolRevision": 5, "config": config})
    node.machine.run("sh", "-c", f"umask 077 && printf %s {shlex.quote(text)} > {STAGING_CONFIG}")


def test_update_of_staged_config_succeeds_without_the_mirror(lab: Lab, node: ManagedLabNode) -> None:
    node.machine.run("systemctl", "stop", "aks-flex-node")
    orders(node, NEW)

    # Killed in the middle, staging leaves nothing that counts.
    node.machine.run("timeout", "--signal=KILL", "0.7", "aks-flex-node", "job", "stage", check=False)
    assert node.status()["daemon"]["staging"] == {"poolRevision": 5, "staged": False, "message": ""}
    flex(node.machine, "job", "stage")
    assert node.status()["daemon"]["staging"]["staged"]
    assert "pool revision 5: downloaded and verified, not in effect" in flex(node.machine, "status").out
    differs = flex(node.machine, "verify", check=False).out.split()
    assert differs == ["service", "start", "aks-flex-node.service"]
    flex(node.machine, "artifacts", "clean", "--old")  # keeps what is staged
    assert node.kubelet_version() == "v1.35.4"

    lab.mirror.add("*", StatusFault(503))
    try:
        version = node.update(versions=NEW)
        node.machine.run("systemctl", "start", "aks-flex-node")
        node.wait_until_applied(version)
    finally:
        lab.mirror.reset()
    until(lambda: node.kubelet_version() == "v1.36.3", "the Node reports its new kubelet")
    until(lambda: not exists(node.machine, STAGED), "what was staged is gone")
    flex(node.machine, "verify")


def is_staged_by_daemon(node: ManagedLabNode) -> bool:
    """Returns whether the node has reported it. A poll removes a configuration that the provider did not send."""
    if not exists(node.machine, STAGING_CONFIG):
        orders(node, NEW)
    return bool(node.provider.get(node.name)["status"].get("stagedPoolRevision") == 5)


def test_daemon_stages_in_a_unit_of_its_own_and_reports_it(node: ManagedLabNode) -> None:
    begun = node.machine.run("systemctl", "show", "-p", "InvocationID", "kubelet", "containerd").out
    until(lambda: is_staged_by_daemon(node), "the staged revision is reported")
    assert node.condition("StagingFailed") == {}
    assert "Pool revision 5 is staged" in node.machine.run("journalctl", "-u", "aks-flex-node-stage", "-o", "cat").out

    # The provider does not announce it: the next poll withdraws it, and everything that was staged goes.
    until(lambda: not exists(node.machine, STAGED), "what was staged is removed")
    until(lambda: "stagedPoolRevision" not in node.provider.get(node.name)["status"], "and the report says so")
    assert node.machine.run("systemctl", "show", "-p", "InvocationID", "kubelet", "containerd").out == begun
    flex(node.machine, "verify")
