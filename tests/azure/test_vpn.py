"""Tests of a machine that reaches the API server only through the VPN, with OpenVPN at both ends."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import network
from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_lab.arm.network_resources import NetworkDelays
from aks_flex_lab.components.resource_provider import CLUSTER_ID, RESOURCE_GROUP_ID
from aks_flex_lab.processes import ProcessHandle
from tests.agents import differences, facts, flex, prepare, web_pod
from tests.lab_azure import azure_settings
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

NETWORK_CONTRIBUTOR = "4d97b98b-1d4f-4787-a291-c67834d212e7"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
GATEWAY = f"{RESOURCE_GROUP_ID}/providers/Microsoft.Network/virtualNetworkGateways/aks-flex-node"
ASK = ("curl", "--silent", "--insecure", "--max-time", "3", f"{network.PRIVATE_API_URL}/version")


@pytest.fixture(scope="module")
def operator(lab: Lab) -> dict[str, Any]:
    """Returns a service principal that can create networks and read the cluster."""
    secret = secrets.token_urlsafe(24)
    principal = lab.azure.directory.service_principal("vpn-operator", secret)
    for role in (NETWORK_CONTRIBUTOR, READER):
        lab.azure.assignments.put(RESOURCE_GROUP_ID, role, principal.object_id)
    return azure_settings(
        lab,
        authorityHost=network.LOGIN_URL,
        servicePrincipal={"clientId": principal.client_id, "clientSecret": secret},
        targetCluster={"resourceId": CLUSTER_ID},
    )


@pytest.fixture(autouse=True)
def _azure_as_it_was(lab: Lab) -> Iterator[None]:
    yield
    lab.fault_proxy.clear("vpn")
    lab.vpn.resources.set_delays(NetworkDelays())
    for id_ in [id_ for id_ in lab.vpn.resources.all() if "gateway" in id_ or "publicip" in id_]:
        lab.vpn.resources.remove(id_)
    lab.vpn.resources.remove(lab.vpn.network_id)
    lab.vpn.prepare("westeurope")


@pytest.fixture
def site(lab: Lab, operator: dict[str, Any], add_machine: Callable[..., EdgeMachine]) -> Callable[..., EdgeMachine]:
    """Returns a function that creates machines with the agent and a VPN in their configuration."""

    def add(name: str, **vpn: Any) -> EdgeMachine:
        machine = add_machine(name, site="private")
        azure = {**operator, "vpn": {"enabled": True, **vpn}}
        prepare(lab, machine, azure=azure, node={"kubelet": {"serverURL": network.PRIVATE_API_URL}})
        return machine

    return add


def reaches(machine: EdgeMachine) -> bool:
    return machine.run(*ASK, check=False).ok


def status(machine: EdgeMachine) -> str:
    return str(facts(machine, "vpn", "status", check=False)["status"])


def roots(lab: Lab) -> list[str]:
    found = lab.vpn.resources.find(GATEWAY)
    assert found
    return [
        each["name"] for each in found.document["properties"]["vpnClientConfiguration"]["vpnClientRootCertificates"]
    ]


def test_node_joins_through_vpn_and_unbootstrap_removes_all_traces(
    lab: Lab, site: Callable[..., EdgeMachine]
) -> None:
    machine = site("vpn-1", autoProvision=True)
    before = machine.snapshot()
    assert not reaches(machine)
    assert not machine.run("curl", "--silent", "--max-time", "2", f"https://{network.PRIVATE_API}", check=False).ok

    flex(machine, "bootstrap-node")

    assert status(machine) == "Connected"
    assert facts(machine, "status")["vpn"]["status"] == "Connected"
    default = machine.run("ip", "route", "get", network.API).out
    assert "flexvpn0" not in default
    keys = machine.run("find", "/var/lib/aks-flex-node/vpn", "-type", "f", "-printf", "%m\n").out.split()
    assert set(keys) == {"600"}
    until(lambda: lab.cluster.node_ready("vpn-1"), "the node is Ready")
    lab.cluster.apply(web_pod("web-vpn-1", "vpn-1"))
    until(
        lambda: lab.cluster.run("exec", "web-vpn-1", "--", "true", check=False).ok, "the API server reaches the node"
    )

    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")

    assert roots(lab) == []
    assert differences(before, machine) == []
    assert not reaches(machine)


def test_vpn_tunnel_reconnects_after_outage_restart_and_reboot(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    machine = site("vpn-2", autoProvision=True)
    flex(machine, "bootstrap-vpn")
    assert reaches(machine)

    lab.fault_proxy.set_enabled("vpn", on=False)
    until(lambda: status(machine) == "Connecting", "the cut is seen")
    assert not reaches(machine)
    lab.fault_proxy.clear("vpn")
    until(lambda: status(machine) == "Connected", "the tunnel is back")
    assert reaches(machine)

    server = next(pid for pid in lab.network.cloud.pids() if _is_server(pid))
    ProcessHandle.of(server).kill()
    until(lambda: not ProcessHandle.of(server).alive, "the server ended")
    until(lambda: reaches(machine), "the tunnel is back after the server's restart")

    machine.reboot()
    until(lambda: reaches(machine), "the tunnel is back after the machine's restart")


def _is_server(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[0] == b"openvpn"


def test_vpn_certificate_renewal_replaces_root_certificate(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    machine = site("vpn-3", autoProvision=True)
    flex(machine, "bootstrap-vpn")
    before = roots(lab)

    flex(machine, "bootstrap-vpn", "--renew")

    after = roots(lab)
    assert len(before) == len(after) == 1
    assert before != after
    assert reaches(machine)


@pytest.mark.long
def test_two_machines_share_vpn_gateway(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    one, other = site("vpn-4", autoProvision=True), site("vpn-5")
    flex(one, "bootstrap-vpn")
    flex(other, "bootstrap-vpn")
    assert len(roots(lab)) == 2
    until(lambda: reaches(one), "the one has its tunnel")
    until(lambda: reaches(other), "the other has its tunnel")

    flex(other, "vpn", "remove", "--yes")

    assert len(roots(lab)) == 1
    until(lambda: reaches(one), "the other keeps its tunnel")
    assert not reaches(other)
    refused = flex(other, "vpn", "remove", "--yes", "--gateway", check=False)
    assert "vpn-gateway-not-owned" in refused.err
    flex(one, "vpn", "remove", "--yes", "--gateway")
    assert lab.vpn.resources.find(GATEWAY) is None


@pytest.mark.long
def test_vpn_gateway_with_other_settings_is_changed_only_with_adopt(
    lab: Lab, site: Callable[..., EdgeMachine]
) -> None:
    machine = site("vpn-6", autoProvision=True)
    flex(machine, "bootstrap-vpn")
    flex(machine, "vpn", "remove", "--yes")
    found = lab.vpn.resources.find(GATEWAY)
    assert found
    document = json.loads(json.dumps(found.document))
    document["properties"]["vpnClientConfiguration"]["vpnClientAddressPool"]["addressPrefixes"] = ["172.31.9.0/24"]
    before = lab.vpn.resources.put(document).document

    refused = flex(machine, "bootstrap-vpn", check=False)

    assert "vpn-gateway-settings-mismatch" in refused.err
    assert "172.31.9.0/24" in refused.err
    assert lab.vpn.resources.find(GATEWAY).document == before  # type: ignore[union-attr]
    flex(machine, "bootstrap-vpn", "--adopt")
    assert reaches(machine)


def test_failed_azure_operation_is_reported_and_next_run_succeeds(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    machine = site("vpn-7", autoProvision=True)
    lab.vpn.resources.set_delays(NetworkDelays(seconds=1, fail="NoRoom"))

    failed = flex(machine, "bootstrap-vpn", check=False)

    assert "azure-operation-failed" in failed.err
    assert "NoRoom" in failed.err
    EventualConsistency(lab.azure.state).change(throttled=3)
    flex(machine, "bootstrap-vpn")
    assert reaches(machine)


@pytest.mark.long
def test_next_run_waits_for_vpn_gateway_in_creation(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    machine = site("vpn-8", autoProvision=True)
    lab.vpn.resources.set_delays(NetworkDelays(seconds=12))
    machine.run("sh", "-c", "aks-flex-node bootstrap-vpn >/tmp/first 2>&1 & echo $! >/tmp/first.pid")
    until(lambda: lab.vpn.resources.find(GATEWAY) is not None, "the gateway is being made")
    machine.run("sh", "-c", "kill -9 $(cat /tmp/first.pid)")
    begun = lab.vpn.resources.find(GATEWAY)
    assert begun
    assert begun.state == "Updating"

    flex(machine, "bootstrap-vpn")

    after = lab.vpn.resources.find(GATEWAY)
    assert after
    assert after.document["etag"] == begun.document["etag"]  # nothing was written a second time
    assert reaches(machine)


def test_overlapping_vpn_address_pool_is_refused_before_creation(lab: Lab, site: Callable[..., EdgeMachine]) -> None:
    machine = site("vpn-9", autoProvision=True, p2sGatewayCIDR="198.19.3.0/24")
    refused = flex(machine, "bootstrap-vpn", check=False)
    assert "vpn-pool-overlaps" in refused.err
    assert "the cluster's pods" in refused.err
    assert lab.vpn.resources.find(GATEWAY) is None
