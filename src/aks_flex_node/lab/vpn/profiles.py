"""The archive that a gateway's clients are given, as Azure packs it."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

from aks_flex_node.lab import network

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = """\
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


def shared_key(state: Path) -> Path:
    """The key that all clients of the gateway have, before they show who they are."""
    return state / "vpn" / "shared.key"


def authority(state: Path) -> Path:
    """Who vouches for the gateway."""
    return state / "vpn" / "authority.crt"


def archive(state: Path) -> bytes:
    text = PROFILE.format(
        name=network.VPN_NAME, authority=authority(state).read_text(), shared=shared_key(state).read_text()
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr(
            "Generic/VpnSettings.xml", f"<VpnProfile><VpnServer>{network.VPN_NAME}</VpnServer></VpnProfile>"
        )
        files.writestr("OpenVPN/vpnconfig.ovpn", text)
    return packed.getvalue()
