"""Validation rules for the API server URL and the VPN settings of a node."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules as values
from aks_flex_rp.arm.errors import Problem, first_violation, json_path, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_rp.resource.models import NodeConfigProperties, Vpn

VPN = ("properties", "nodeConfig", "vpn")
SERVER = json_path("properties", "nodeConfig", "kubelet", "serverURL")
DEFAULT_VPN_POOL = "192.168.100.0/24"  # the agent's default
LARGEST, SMALLEST = 8, 29  # prefix lengths; Azure accepts no smaller network
# Ranges that cannot be routed through a gateway.
UNUSABLE_RANGES = tuple(map(ipaddress.IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")))

_GATEWAY = re.compile(r"[0-9A-Za-z]([-\w.]{0,78}\w)?", re.ASCII)
_NETWORK = re.compile(
    r"/subscriptions/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/resourcegroups/[-\w.()]{0,89}[-\w()]"
    r"/providers/microsoft\.network/virtualnetworks/[0-9a-z][-0-9a-z_.]{0,62}[0-9a-z_]",
    re.IGNORECASE,
)


def check_network(node: NodeConfigProperties, taken: Mapping[str, str]) -> Iterator[Problem]:
    """Yields problems of the network settings. `taken` maps addresses of the cluster to what uses them."""
    server = node.kubelet.server_url if node.kubelet else None
    if server is not None and (wrong := _wrong_server(server)):
        yield Problem(SERVER, f"The value {wrong}")  # the value is not shown, because it may contain a password
    if node.vpn:
        yield from _vpn(node.vpn)
        yield from _overlaps(node.vpn, taken)


def _wrong_server(text: str) -> str | None:
    if wrong := values.placeholder(text) or values.plain(text) or values.https_url(text):
        return wrong
    if not text.startswith("https://") or set(text.removeprefix("https://")) & set("/?#@"):
        return "must be https://HOST or https://HOST:PORT, without user, path, query or fragment."
    return None


def _vpn(vpn: Vpn) -> Iterator[Problem]:
    if vpn.gateway_name is not None:
        yield from first_violation((*VPN, "gatewayName"), vpn.gateway_name, values.placeholder, _gateway)
    if vpn.p2s_gateway_cidr is not None:
        yield from first_violation((*VPN, "p2sGatewayCIDR"), vpn.p2s_gateway_cidr, _network)
    if vpn.gateway_subnet_cidr is not None:
        yield from first_violation((*VPN, "gatewaySubnetCIDR"), vpn.gateway_subnet_cidr, _network)
    if vpn.virtual_network_id is not None:
        path = (*VPN, "virtualNetworkId")
        yield from first_violation(path, vpn.virtual_network_id, values.placeholder, _virtual_network)
    for number, text in enumerate(vpn.dns_servers or ()):
        yield from first_violation((*VPN, "dnsServers", number), text, values.ip, _version_4)
    for number, text in enumerate(vpn.dns_domains or ()):
        yield from first_violation((*VPN, "dnsDomains", number), text, kubernetes.domain)


def _gateway(text: str) -> str | None:
    if _GATEWAY.fullmatch(text):
        return None
    return "is not a valid gateway name. Use letters, digits, `-`, `_` and `.`, beginning with a letter or digit."


def _virtual_network(text: str) -> str | None:
    if _NETWORK.fullmatch(text):
        return None
    return (
        "is not a virtual network ID: /subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/"
        "…. List the IDs with `az network vnet list --query [].id`."
    )


def _network(text: str) -> str | None:
    if wrong := values.network(text):
        return wrong
    if wrong := _version_4(text):
        return wrong
    network = ipaddress.IPv4Network(text)
    if not LARGEST <= network.prefixlen <= SMALLEST:
        size = "small" if network.prefixlen > SMALLEST else "large"
        return f"is too {size}. The prefix length must be from {LARGEST} to {SMALLEST}."
    if any(network.overlaps(each) for each in UNUSABLE_RANGES):
        return "contains unusable addresses, such as loopback or multicast."
    return None


def _version_4(text: str) -> str | None:
    return "is an IPv6 network, which the VPN does not support." if ":" in text else None


def _overlaps(vpn: Vpn, taken: Mapping[str, str]) -> Iterator[Problem]:
    """Yields overlaps of valid networks. The default pool is checked as well."""
    text = vpn.p2s_gateway_cidr or (DEFAULT_VPN_POOL if vpn.enabled else "")
    if not text or _network(text):
        return
    subnet = vpn.gateway_subnet_cidr
    others = {**({subnet: "gatewaySubnetCIDR"} if subnet and not _network(subnet) else {}), **taken}
    pool = ipaddress.IPv4Network(text)
    found = [f"{each} ({what})" for each, what in others.items() if _overlap(pool, each)]
    if found:
        usual = "" if vpn.p2s_gateway_cidr else ", the default pool,"
        yield Problem(
            json_path(*VPN, "p2sGatewayCIDR"),
            f"{quoted(text)}{usual} overlaps {' and '.join(found)}. "
            "Choose an unused range for VPN clients, such as 172.31.255.0/24.",
        )


def _overlap(pool: ipaddress.IPv4Network, other: str) -> bool:
    try:
        return pool.overlaps(ipaddress.IPv4Network(other, strict=False))
    except ValueError:  # IPv6
        return False
