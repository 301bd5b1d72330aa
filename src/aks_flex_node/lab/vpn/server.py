"""What the OpenVPN server is told, by the gateway that stands in ARM. Pure."""

from __future__ import annotations

import base64
import ipaddress
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab import network

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

GATEWAYS = "/virtualnetworkgateways/"


@dataclass(frozen=True)
class Gateway:
    """What matters of a gateway to its clients."""

    pool: str
    roots: tuple[str, ...]  # PEM


def gateway(documents: Iterable[dict[str, Any]]) -> Gateway | None:
    """The first that lets clients in; None when there is none."""
    for document in documents:
        clients = document["properties"].get("vpnClientConfiguration") or {}
        pool = (clients.get("vpnClientAddressPool") or {}).get("addressPrefixes") or []
        roots = clients.get("vpnClientRootCertificates") or []
        if (
            GATEWAYS in document["id"].lower()
            and pool
            and roots
            and "OpenVPN" in clients.get("vpnClientProtocols", [])
        ):
            return Gateway(pool[0], tuple(sorted(pem(each["properties"]["publicCertData"]) for each in roots)))
    return None


def pem(data: str) -> str:
    """A certificate as Azure keeps it, in the form that OpenVPN reads."""
    plain = base64.b64encode(base64.b64decode(data)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{textwrap.fill(plain, 64)}\n-----END CERTIFICATE-----\n"


def configuration(pool: str, room: Path, certificate: Path, key: Path, shared: Path) -> str:
    """It tells clients where the private network is, as Azure's does, and nothing else."""
    clients, private = ipaddress.ip_network(pool), ipaddress.ip_network(network.PRIVATE)
    return "\n".join(
        [
            f"server {clients.network_address} {clients.netmask}",
            "topology subnet",
            f"local {network.VPN}",
            "port 443",
            "proto tcp-server",
            f"dev {network.VPN_LINK}",
            "dev-type tun",
            f"ca {room / 'roots.pem'}",
            f"cert {certificate}",
            f"key {key}",
            "dh none",
            f"tls-auth {shared} 0",
            "auth SHA256",
            "cipher AES-256-GCM",
            "tls-version-min 1.2",
            "remote-cert-tls client",
            "keepalive 2 10",  # so that nobody waits long to see that a tunnel is cut
            f"ifconfig-pool-persist {room / 'addresses'} 1",
            f'push "route {private.network_address} {private.netmask}"',
            "script-security 1",
            "verb 3",
            "",
        ]
    )
