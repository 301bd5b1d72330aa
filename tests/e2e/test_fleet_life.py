"""Life of a fleet without Azure: the lab's Entra ID and ARM are stopped while a machine enrols, works and leaves."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import network
from aks_flex_lab.components.azure import IMDS_ADDRESS
from aks_flex_lab.processes import run
from tests.agents import differences, facts, flex, install_agent
from tests.client_certificates import with_end
from tests.enrolled_node import EnrolledNode, Enrolments
from tests.harness import Lines
from tests.lab_machines import temporary_machine
from tests.providers import Provider
from tests.wait import boot_id, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.snapshots import Snapshot

OLDER, NEWER = {"kubernetes": "1.35.4"}, {"kubernetes": "1.36.3"}
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"


@dataclass(frozen=True)
class SiteRouter:
    """Firewall rules at the router of a machine's site."""

    namespace: NetworkNamespace
    address: str  # of the machine

    @contextmanager
    def dropping(self, *to: str) -> Iterator[None]:
        """Drops the packets of the machine to some addresses, and counts them."""
        with ExitStack() as rules:
            for each in to:
                rules.enter_context(self._rule("raw", "PREROUTING", "-d", each, "-j", "DROP"))
            yield

    @contextmanager
    def offline(self) -> Iterator[None]:
        with self._rule("filter", "FORWARD", "-j", "REJECT", "--reject-with", "icmp-net-unreachable"):
            yield

    def dropped(self, to: str) -> int:
        rules = self._iptables("-t", "raw", "-vnxL", "PREROUTING").splitlines()
        [found] = [words for words in map(str.split, rules) if words[-2:] == [self.address, to]]
        return int(found[0])

    @contextmanager
    def _rule(self, table: str, chain: str, *rule: str) -> Iterator[None]:
        self._iptables("-t", table, "-I", chain, "-s", self.address, *rule)
        try:
            yield
        finally:
            self._iptables("-t", table, "-D", chain, "-s", self.address, *rule)

    def _iptables(self, *arguments: str) -> str:
        return run(*self.namespace.command("iptables", "-w", *arguments)).out


@dataclass(frozen=True)
class AzureFreeNode(EnrolledNode):
    before: Snapshot
    router: SiteRouter

    @property
    def packets_to_azure(self) -> int:
        return sum(self.router.dropped(address) for address in (network.AZURE, IMDS_ADDRESS))


@pytest.fixture(scope="module")
def no_azure(lab: Lab) -> Iterator[None]:
    """Stops the lab's Azure, and restarts the provider, which so starts and serves without it."""
    for name in ("azure", "provider"):
        process = lab.supervisor.process(name)
        assert process
        process.stop()
    provider = lab.provider.component()
    try:
        lab.supervisor.start(provider)
        lab.supervisor.wait(provider)
        yield
        assert lab.supervisor.process("azure") is None
    finally:
        lab.up(Lines())


@pytest.fixture(scope="module")
def node(lab: Lab, no_azure: None) -> Iterator[AzureFreeNode]:
    """Yields one node for all tests of this file, joined by an enrolment URL. The last test removes it."""
    with temporary_machine(lab, "fleet-1") as machine:
        enrolments = Enrolments(Provider(lab), "fleet")
        enrolments.put_pool(versions=OLDER)
        install_agent(machine)
        router = SiteRouter(lab.network.site_namespace(machine.site()), machine.record.address)
        with router.dropping(network.AZURE, IMDS_ADDRESS):
            found = AzureFreeNode(lab, machine, enrolments, machine.snapshot(), router)
            found.join()
            until(found.is_whole, "the node is Ready")
            yield found
        enrolments.delete()


def test_enrolled_node_is_updated_upgraded_and_repaired(lab: Lab, node: AzureFreeNode) -> None:
    machine = node.machine
    assert node.status["nodeKey"]["thumbprint"] == node.key["thumbprint"]
    assert node.node["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.4"

    node.wait_until_applied(node.apply(versions=OLDER, nodeConfig={"labels": {"tier": "gold"}, "maxPods": 42}))
    assert node.node["metadata"]["labels"]["tier"] == "gold"
    until(lambda: node.node["status"]["capacity"]["pods"] == "42", "the kubelet has the setting")

    node.wait_until_applied(node.apply(versions=NEWER))
    assert node.node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert not node.node["spec"].get("unschedulable")

    drift = int(node.status.get("driftCount", 0))
    machine.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml; rm /usr/local/bin/kubelet")
    until(lambda: int(node.status.get("driftCount", 0)) >= drift + 2, "the provider is told of the drift")
    until(node.is_whole, "the drift is repaired")
    assert node.packets_to_azure == 0


@pytest.mark.promise
def test_node_recovers_lost_and_expired_certificates(lab: Lab, node: AzureFreeNode) -> None:
    machine = node.machine
    began = time.time()
    machine.run("sh", "-c", f"rm -r {CERTIFICATE.rpartition('/')[0]}; systemctl restart kubelet || true")
    until(lambda: node.lease_renewed() > began and node.is_whole(), "the node has a new certificate")

    # Offline, with a power cut, until the certificate has expired.
    lost, boot = machine.run("cat", CERTIFICATE).out, boot_id(lab, node.name)
    with node.router.offline():
        end = datetime.now(timezone.utc) + timedelta(seconds=15)
        expiring = with_end(lost, end, lab.authority.key.read_bytes())
        machine.run("sh", "-c", f"cat >$(readlink -f {CERTIFICATE}); sync", input=expiring)
        machine.power_cycle()
        until(lambda: facts(machine, "status")["certificate"]["days"] <= 0, "the certificate has expired")
        until(lambda: datetime.now(timezone.utc) > end, "the certificate has expired")
        until(lambda: node.daemon["providerState"] == "ProviderUnreachable", "the daemon reports that it is offline")
    began = time.time()
    until(lambda: boot_id(lab, node.name) != boot and node.lease_renewed() > began, "the kubelet is back")
    until(lambda: node.daemon["providerState"] == "Connected" and node.is_whole(), "the node is back")
    assert facts(machine, "status")["certificate"]["days"] > 1
    assert node.packets_to_azure == 0


def test_key_is_rotated_and_revoked_and_the_machine_leaves_clean(lab: Lab, node: AzureFreeNode) -> None:
    machine, first = node.machine, node.key["thumbprint"]
    flex(machine, "node-key", "rotate")
    second = node.key["thumbprint"]
    assert second != first
    until(lambda: node.status["nodeKey"]["thumbprint"] == second, "the new key is in use")
    node.wait_until_applied(node.apply(versions=NEWER, nodeConfig={"labels": {"tier": "silver"}}))

    lab.provider.run_cli("node", "revoke-key", "--name", node.name)

    until(lambda: node.daemon["providerState"] == "NodeKeyRevoked", "the machine shows the cause")
    assert "join-command" in flex(machine, "explain", "NodeKeyRevoked").out
    assert f"node join-command --name {node.name}" in node.condition("NodeKeyRevoked")["message"]
    assert node.status["nodeKey"] | {"since": ""} == {**node.status["nodeKey"], "state": "Revoked", "since": ""}
    seen, now = node.provider.get(node.name)["lastSeen"], time.time()
    pending = node.apply(versions=NEWER, nodeConfig={"labels": {"tier": "bronze"}})
    until(lambda: node.lease_renewed() > now + 12, "the kubelet renews its lease")
    assert lab.cluster.node_ready(node.name)
    assert node.provider.get(node.name)["lastSeen"] == seen
    assert node.status["appliedConfigVersion"] != pending
    assert node.node["metadata"]["labels"]["tier"] == "silver"

    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    assert differences(node.before, machine) == []
    assert node.packets_to_azure == 0
