"""A machine with a VPN, its Azure, and gateways of other owners."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.components.vpn import HOSTS, PROGRAM
from aks_flex_node.agent.reconcile.node_state import NodeState, read
from aks_flex_node.agent.vpn.connection import VpnConnection
from aks_flex_node.agent.vpn.local_state import VpnRecord, VpnRecordStore
from aks_flex_node.errors import FlexError
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA, config_of, engine_on
from tests.unit.agent.config.builders import CLUSTER_ID, Settings
from tests.unit.agent.vpn.fakes import API_NAME, GATEWAY, NETWORK, Clock, FakeAzure, quick_pair, vpn_environment

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.vpn.client_certificate import ClientCertificate
    from aks_flex_node.settings.models import NodeConfig

SETTINGS: Settings = {
    "azure.vpn.enabled": True,
    "azure.vpn.autoProvision": True,
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "node.kubelet.serverURL": f"https://{API_NAME}:443",
}
FILES = {
    PROGRAM: "",
    HOSTS: "127.0.0.1 localhost\n",
    "/proc/filesystems": "nodev\toverlay\n",
    "/etc/systemd/system/x": "",
}
PAIR = f"{DATA}/vpn/aks-flex-node-edge-1-1.pem"


class Site:
    """A machine, its Azure, and runs of the agent, each of which knows only what is on the disk."""

    def __init__(self, **settings: object) -> None:
        self.azure = FakeAzure()
        self.clock = Clock()
        self.notes: list[str] = []
        self.host = RecordedHost(FILES)
        self.config = config_of({**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}})
        self.changes: dict[str, Any] = {}

    def engine(self, config: NodeConfig | None = None) -> Engine:
        return engine_on(self.host, config or self.config)

    def connection(self, **words: bool) -> VpnConnection:
        return VpnConnection(
            self.engine(), self.notes.append, vpn_environment(self.azure, self.clock, **self.changes), **words
        )

    def run(self, **words: bool) -> None:
        self.connection(**words).run()

    def refuses(self, name: str, words: str = "", **options: bool) -> None:
        """Runs, and expects this error."""
        with pytest.raises(FlexError, match=words or None) as caught:
            self.run(**options)
        assert caught.value.name == name

    @property
    def clients(self) -> dict[str, Any]:
        """The settings of the gateway for its clients."""
        clients: dict[str, Any] = self.azure.documents[GATEWAY]["properties"]["vpnClientConfiguration"]
        return clients

    def has_private_zone(self, address: str) -> None:
        """Lets the network have no DNS server, but a private zone with the API server."""
        self.azure.documents[NETWORK]["properties"].pop("dhcpOptions")
        self.azure.documents[CLUSTER_ID]["properties"]["nodeResourceGroup"] = "MC"
        zone = "/subscriptions/sub-1/resourceGroups/MC/providers/Microsoft.Network/privateDnsZones/private.example"
        self.azure.documents[f"{zone}/A/api"] = {"properties": {"aRecords": [{"ipv4Address": address}]}}

    def uses_gateway(self, gateway: str, **settings: object) -> None:
        """Configures another gateway."""
        name = gateway.rpartition("/")[2]
        self.config = config_of({**SETTINGS, "azure.vpn.gatewayName": name, **settings})
        self.azure.profiles = f"{gateway}/generatevpnprofile"

    def has_network(self, address: str) -> None:
        """Lets the machine have this address in a local network of 256 addresses."""
        local = {"family": "inet", "local": address, "prefixlen": 24}
        answer = json.dumps([{"ifname": "eth0", "addr_info": [local]}])
        self.host = RecordedHost(FILES, {("ip", "-j", "addr"): CommandResult(0, answer)})

    def text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode()

    @property
    def record(self) -> VpnRecord:
        return VpnRecordStore(self.host, self.config).current

    @property
    def state(self) -> NodeState:
        return read(self.host, f"{DATA}/state.json")


def theirs(**changes: Any) -> dict[str, Any]:
    clients = {
        "vpnClientAddressPool": {"addressPrefixes": ["192.168.100.0/24"]},
        "vpnClientProtocols": ["OpenVPN"],
        "vpnAuthenticationTypes": ["Certificate"],
        "vpnClientRootCertificates": [{"name": "theirs", "properties": {"publicCertData": "YWJj"}}],
        **changes,
    }
    properties = {
        "gatewayType": "Vpn",
        "vpnType": "RouteBased",
        "sku": {"name": "VpnGw1"},
        "bgpSettings": {"asn": 65515},
        "vpnClientConfiguration": clients,
        "provisioningState": "Succeeded",
    }
    return {"id": GATEWAY, "location": "westeurope", "etag": '"1"', "properties": properties}


def numbered(site: Site) -> None:
    """Lets each certificate of the machine be another one."""
    numbers = itertools.count(1)

    def pair(node: str) -> ClientCertificate:
        return replace(quick_pair(node), name=f"aks-flex-node-{node}-{next(numbers)}")

    site.changes["make_certificate"] = pair
