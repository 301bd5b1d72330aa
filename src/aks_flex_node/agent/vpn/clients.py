"""What the OpenVPN client here is told: to reach the network in Azure, and to touch nothing else. Pure."""

from __future__ import annotations

import ipaddress
import shlex
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import LINK, MANAGEMENT
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK
from aks_flex_node.agent.vpn.overlaps import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aks_flex_node.agent.vpn.profiles import Profile

AZURE_DNS = "168.63.129.16/32"  # answers only inside of a network, and never to VPN clients
# A server has no say in where other packets go, nor in whom we ask for names.
IGNORED = (
    *("redirect-gateway", "redirect-private", "route ", "route-ipv6", "dhcp-option", "dns ", "block-"),
    *("ifconfig-ipv6", "setenv"),
)


def configuration(profile: Profile, pair: str, networks: Iterable[str], up: str = "") -> bytes:
    """`pair` is the file with our key and certificate; `up` a script to run when the tunnel is there."""
    name, kind = profile.server_name
    lines = [
        f"# {MANAGED_MARK}",
        "client",
        f"dev {LINK}",
        "dev-type tun",
        f"proto {profile.protocol}",
        *(f"remote {host} {port}" for host, port in profile.remotes),
        "remote-cert-tls server",
        *([f"verify-x509-name {name} {kind}"] if name else []),
        *(f"{key} {value}" for key, value in sorted(profile.words.items())),
        f"cert {pair}",
        f"key {pair}",
        "nobind",
        "auth-nocache",
        "persist-key",
        "persist-tun",
        # However long the gateway or the line is away, the tunnel comes back by itself.
        "resolv-retry infinite",
        "connect-retry 2 60",
        "connect-timeout 20",
        "keepalive 10 60",
        "route-nopull",
        *(f'pull-filter ignore "{each}"' for each in IGNORED),
        *(f"route {each.network_address} {each.netmask}" for each in routes(networks)),
        f"management {MANAGEMENT} unix",
        *(["script-security 2", f"up {up}"] if up else ["script-security 1"]),
        "verb 3",
        *(f"<{block}>\n{content}</{block}>" for block, content in sorted(profile.blocks.items())),
    ]
    return ("\n".join(lines) + "\n").encode()


def routes(networks: Iterable[str]) -> list[ipaddress.IPv4Network]:
    """One for each range; none for what lies in another, and none for everything."""
    found = {one.network for one in ranges("", networks) if one.network.prefixlen > 0}
    return sorted(ipaddress.collapse_addresses(found))


def name_servers(configured: Sequence[str], of_network: Sequence[str], of_profile: Sequence[str]) -> tuple[str, ...]:
    """Whom to ask behind the VPN: as configured, else as the network has it."""
    found = configured or of_network or of_profile
    return tuple(str(one.network.network_address) for one in ranges("", found) if str(one.network) != AZURE_DNS)


def up_script(servers: Sequence[str], domains: Sequence[str]) -> bytes:
    """Tells systemd-resolved whom to ask for just these names. It goes with the link, and so does what it says."""
    lines = [
        "#!/bin/sh",
        f"# {MANAGED_MARK}",
        f'resolvectl dns "$dev" {" ".join(servers)}',
        f'resolvectl domain "$dev" {" ".join(shlex.quote(f"~{each}") for each in domains)}',
        "exit 0",
    ]
    return ("\n".join(lines) + "\n").encode()
