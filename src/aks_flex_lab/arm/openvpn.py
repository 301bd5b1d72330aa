"""Creates the OpenVPN client profile archive and server configuration for a VPN gateway in ARM."""

from __future__ import annotations

import base64
import io
import ipaddress
import textwrap
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


GATEWAY_PATH = "/virtualnetworkgateways/"


@dataclass(frozen=True)
class GatewaySpec:
    """The properties of a gateway that its clients need."""

    pool: str
    roots: tuple[str, ...]  # PEM


def find_gateway(documents: Iterable[dict[str, Any]]) -> GatewaySpec | None:
    """Returns the first gateway with client configuration, or None."""
    for document in documents:
        clients = document["properties"].get("vpnClientConfiguration") or {}
        pool = (clients.get("vpnClientAddressPool") or {}).get("addressPrefixes") or []
        roots = clients.get("vpnClientRootCertificates") or []
        if (
            GATEWAY_PATH in document["id"].lower()
            and pool
            and roots
            and "OpenVPN" in clients.get("vpnClientProtocols", [])
        ):
            return GatewaySpec(
                pool[0], tuple(sorted(certificate_pem(each["properties"]["publicCertData"]) for each in roots))
            )
    return None


def certificate_pem(data: str) -> str:
    """Converts a certificate from Azure's format to PEM for OpenVPN."""
    plain = base64.b64encode(base64.b64decode(data)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{textwrap.fill(plain, 64)}\n-----END CERTIFICATE-----\n"


def server_config(pool: str, directory: Path, certificate: Path, key: Path, shared: Path) -> str:
    """Returns the server configuration, which pushes only the route to the private network, as Azure does."""
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
            f"ca {directory / 'roots.pem'}",
            f"cert {certificate}",
            f"key {key}",
            "dh none",
            f"tls-auth {shared} 0",
            "auth SHA256",
            "cipher AES-256-GCM",
            "tls-version-min 1.2",
            "remote-cert-tls client",
            "keepalive 2 10",  # short, so that a broken tunnel is detected soon
            f"ifconfig-pool-persist {directory / 'addresses'} 1",
            f'push "route {private.network_address} {private.netmask}"',
            "script-security 1",
            "verb 3",
            "",
        ]
    )


CLIENT_PROFILE = """\
client
remote {name} 443
verify-x509-name '{name}' name
remote-cert-tls server

dev tun
proto tcp
resolv-retry infinite
nobind

auth SHA256
cipher AES-256-GCM
persist-key
persist-tun

tls-timeout 30
tls-version-min 1.2
key-direction 1

#log openvpn.log
verb 3

# P2S CA root certificate
<ca>
{authority}</ca>

# Pre Shared Key
<tls-auth>
{shared}</tls-auth>

# P2S client certificate
# Please fill this field with a PEM formatted client certificate
<cert>
$CLIENTCERTIFICATE
</cert>

# P2S client certificate private key
<key>
$PRIVATEKEY
</key>
"""


def shared_key_file(state: Path) -> Path:
    """The tls-auth key, which all clients of the gateway share."""
    return state / "vpn" / "shared.key"


def authority_file(state: Path) -> Path:
    """The CA certificate of the gateway."""
    return state / "vpn" / "authority.crt"


def client_archive(state: Path) -> bytes:
    text = CLIENT_PROFILE.format(
        name=network.VPN_NAME, authority=authority_file(state).read_text(), shared=shared_key_file(state).read_text()
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr(
            "Generic/VpnSettings.xml", f"<VpnProfile><VpnServer>{network.VPN_NAME}</VpnServer></VpnProfile>"
        )
        files.writestr("OpenVPN/vpnconfig.ovpn", text)
    return packed.getvalue()
