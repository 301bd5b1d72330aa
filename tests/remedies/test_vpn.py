"""The remedies of errors of the VPN on the machine are followed, and the VPN then connects or is removed."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.bootstrap import prerequisites
from aks_flex_node.agent.bootstrap.management import refuse_temporary_vpn
from aks_flex_node.agent.components.vpn import HOSTS
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.vpn.client_profile import download_profile
from aks_flex_node.api import node_changes
from aks_flex_rp.cli import app as provider_commands
from tests.remedies.catalogue import advice, command
from tests.remedies.vpn_harness import TunnelSite, failure, parse
from tests.unit.agent.builders import config_of, empty_host, engine_on
from tests.unit.agent.config.builders import CA, CLUSTER_ID
from tests.unit.agent.vpn.fakes import PROFILE, archive
from tests.unit.agent.vpn.harness import SETTINGS
from tests.unit.rp.resource.test_config_generator import FACTS
from tests.unit.rp.resource.test_config_generator import config as generated_config

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.settings.models import NodeConfig

BOOTSTRAP = "aks-flex-node bootstrap-vpn"


@pytest.fixture
def site() -> TunnelSite:
    return TunnelSite()


@pytest.mark.remedy("vpn-api-server-unreachable")
@pytest.mark.parametrize("way", ["name servers", "network security group"])
def test_api_server_is_reached_after_dns_or_the_network_is_corrected(site: TunnelSite, way: str) -> None:
    private, servers = "10.1.0.10", {"10.1.0.53": "10.1.0.10"}
    site.changes["resolve"] = lambda server, _: servers.get(server, "203.0.113.5")
    blocked = way == "network security group"
    if blocked:
        servers["10.1.0.4"] = private
    open_port = not blocked

    def accepts_connections(_: str, __: int) -> bool:
        return open_port and (site.host.read(HOSTS) or b"").startswith(private.encode())

    site.changes["accepts_connections"] = accepts_connections
    site.fails("vpn-api-server-unreachable")

    if blocked:
        advice("vpn-api-server-unreachable", "check the network security groups between the VPN and the API server")
        open_port = True
    else:
        advice("vpn-api-server-unreachable", "If the address is not private, set `azure.vpn.dnsServers`.")
        site.config = config_of({**SETTINGS, "azure.vpn.dnsServers": ["10.1.0.53"]})
    site.bootstrap_vpn()

    assert site.record.settings != ""


def test_vpn_of_a_managed_node_is_enabled_in_its_resource() -> None:
    """The configuration of the URL enables the VPN after the command of the remedy."""

    def fetched(flags: dict[str, object], **properties: Any) -> LoadedConfig:
        text = json.dumps({"config": generated_config(**properties)}).replace(FACTS.ca_cert_data, CA)
        return load_text(text, "https://rp.example", {}, flags)

    flag = fetched({"azure.vpn.enabled": "true"})
    assert failure(refuse_temporary_vpn, flag).name == "vpn-flags-not-supported"

    found = parse(provider_commands, ["aks-flex-rp", "node", "update", "--name", "edge-1", "--vpn"])
    assert found["name"] == "edge-1"
    properties = node_changes.apply_options({}, node_changes.NodeOptions(vpn=found["vpn"]))
    loaded = fetched({}, **properties)
    refuse_temporary_vpn(loaded)

    assert loaded.config.azure.vpn.enabled


@pytest.mark.remedy("vpn-gateway-unreachable")
def test_vpn_connects_after_the_firewall_allows_the_gateway(site: TunnelSite) -> None:
    site.world.firewall_open = False
    site.fails("vpn-gateway-unreachable")

    advice("vpn-gateway-unreachable", "Allow TCP port 443 to the public address of the gateway.")
    site.world.firewall_open = True
    site.bootstrap_vpn()


@pytest.mark.remedy("vpn-gateway-untrusted")
@pytest.mark.parametrize("way", ["clock", "profile"])
def test_gateway_is_trusted_with_a_right_clock_and_a_new_profile(site: TunnelSite, way: str) -> None:
    if way == "clock":
        site.world.clock_right = False
    else:
        outdated = [archive(PROFILE.replace("'gateway.example'", "'earlier.example'"))]
        site.changes["download"] = lambda _, __: outdated.pop() if outdated else archive()
    site.fails("vpn-gateway-untrusted")

    if way == "clock":
        advice("vpn-gateway-untrusted", "Correct the clock")
        site.world.clock_right = True
    site.bootstrap_vpn(command("vpn-gateway-untrusted", BOOTSTRAP))


@pytest.mark.remedy("vpn-connection-rejected")
@pytest.mark.parametrize("more", [[], ["--renew"]])
def test_rejected_machine_registers_its_certificate_again(site: TunnelSite, more: list[str]) -> None:
    def lose_certificates(*_: object) -> bytes:
        """Another client writes the gateway without the new certificate."""
        clients = site.azure.documents[site.record.gateway]["properties"]["vpnClientConfiguration"]
        clients["vpnClientRootCertificates"] = []
        return archive()

    site.changes["download"] = lose_certificates
    site.fails("vpn-connection-rejected")
    del site.changes["download"]

    advice("vpn-connection-rejected", "To create a new certificate, add `--renew`.")
    site.bootstrap_vpn([*command("vpn-connection-rejected", BOOTSTRAP), *more])


@pytest.mark.remedy("vpn-tun-device-missing")
def test_vpn_connects_after_the_tun_driver_is_loaded(site: TunnelSite) -> None:
    site.world.tun_loaded = False
    site.fails("vpn-tun-device-missing")

    site.world.tun_loaded = command("vpn-tun-device-missing", "modprobe") == ["modprobe", "tun"]
    site.bootstrap_vpn()


def test_vpn_command_continues_after_the_vpn_is_enabled() -> None:
    def bootstrap_vpn(config: NodeConfig) -> None:
        engine = engine_on(empty_host(), config)
        prerequisites.connect_vpn(engine, print, auto_provision=False, adopt=False, renew=False)

    assert failure(bootstrap_vpn, config_of()).name == "vpn-not-enabled"

    enabled = config_of({"azure.vpn.enabled": True, "azure.targetCluster.resourceId": CLUSTER_ID})

    assert failure(bootstrap_vpn, enabled).name == "openvpn-not-found"  # this host has no OpenVPN


def test_profile_is_downloaded_after_the_firewall_allows_storage(site: TunnelSite) -> None:
    with socket.socket() as closed:  # bound, but it does not listen
        closed.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{closed.getsockname()[1]}/profile.zip?sig=x"
        site.changes["download"] = lambda config, _: download_profile(config, url)
        site.fails("vpn-profile-unreachable")

    del site.changes["download"]
    site.bootstrap_vpn()
