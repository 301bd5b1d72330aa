"""The lab's VPN: a private network that only a tunnel leads to, and the server at the other end of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab import network
from aks_flex_node.lab.arm.network_resources import NetworkResources
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.parts.part import Part
from aks_flex_node.lab.parts.probes import accepts
from aks_flex_node.lab.pki import Authority
from aks_flex_node.lab.processes import run
from aks_flex_node.lab.vpn import profiles

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.kernel.namespaces import Namespace
    from aks_flex_node.lab.layout import Layout

NETWORK = "virtualNetworks/lab"
SUBNET = "nodes"


@dataclass(frozen=True)
class Vpn:
    layout: Layout
    cloud: Namespace
    state: Path  # of the lab's ARM
    group: str  # of its cluster

    @property
    def network_id(self) -> str:
        return f"{self.group}/providers/Microsoft.Network/{NETWORK}"

    @property
    def subnet_id(self) -> str:
        return f"{self.network_id}/subnets/{SUBNET}"

    @property
    def resources(self) -> NetworkResources:
        """To look at, and to make Azure slow or failing."""
        return NetworkResources(self.state)

    def prepare(self, location: str) -> None:
        """The cluster's network, unless it is there, and what clients of a gateway know it by."""
        if self.resources.find(self.network_id) is None:
            subnet = {"addressPrefix": network.PRIVATE_NODES}
            self.resources.put(
                {
                    "id": self.network_id,
                    "name": "lab",
                    "type": "Microsoft.Network/virtualNetworks",
                    "location": location,
                    "properties": {
                        "addressSpace": {"addressPrefixes": [network.PRIVATE]},
                        "dhcpOptions": {"dnsServers": [network.PRIVATE_DNS]},
                        "subnets": [{"id": self.subnet_id, "name": SUBNET, "properties": subnet}],
                    },
                }
            )
        shared = profiles.shared_key(self.state)
        if not shared.exists():
            write_atomically(shared, run("openvpn", "--genkey", "secret", "/dev/stdout").out, 0o600)
        write_atomically(profiles.authority(self.state), Authority(self.layout.pki).certificate.read_text())

    def part(self) -> Part:
        serving = Authority(self.layout.pki).issue("vpn", network.VPN_NAME, names=(network.VPN_NAME,))
        argv = (
            *(sys.executable, "-m", "aks_flex_node.lab.vpn"),
            f"--state={self.state}",
            f"--room={self.layout.parts / 'vpn'}",
            f"--certificate={serving.certificate}",
            f"--key={serving.key}",
        )
        ready = accepts(self.cloud, network.PRIVATE_DNS, 53)
        return Part("vpn", argv, f"{network.VPN}:443", ready, self.cloud)
