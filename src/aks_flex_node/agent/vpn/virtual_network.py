"""The virtual network of the VPN: the configured one or the cluster's, and checks that its address ranges do not
overlap those of this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import resolved
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aks_flex_node.azure.arm import ArmClient
    from aks_flex_node.settings.models import NodeConfig


IPv4Range = ipaddress.IPv4Network
GATEWAY_BITS = 27  # smallest subnet that Azure recommends for a gateway


@frozen
class UsedRange:
    """An address range and a description of what uses it."""

    what: str
    network: IPv4Range


def ipv4_ranges(texts: Iterable[Any]) -> list[IPv4Range]:
    """Returns the IPv4 ranges. The VPN supports no others."""
    found = []
    for text in texts:
        with contextlib.suppress(ValueError):
            found.append(IPv4Range(str(text), strict=False))
    return found


def used_ranges(what: str, texts: Iterable[Any]) -> list[UsedRange]:
    return [UsedRange(what, each) for each in ipv4_ranges(texts)]


def host_ranges(addresses: str, routes: str, besides: frozenset[str]) -> list[UsedRange]:
    """Returns the networks and routes of a machine from the output of `ip -j addr` and `ip -j route`."""
    found: dict[IPv4Range, UsedRange] = {}
    for link in _json_list(addresses):
        if link.get("ifname") in besides or "LOOPBACK" in (link.get("flags") or ()):
            continue
        for one in link.get("addr_info") or ():
            if one.get("family") == "inet":
                network = IPv4Range(f"{one.get('local')}/{one.get('prefixlen', 32)}", strict=False)
                found.setdefault(
                    network, UsedRange(f"this machine's network {network} ({link.get('ifname')})", network)
                )
    for route in _json_list(routes):
        target = str(route.get("dst", "default"))
        if target != "default" and route.get("dev") not in besides:
            for used in used_ranges(f"this machine's route to {target} ({route.get('dev')})", [target]):
                found.setdefault(used.network, used)
    return list(found.values())


def _json_list(text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text or "[]")
    except ValueError:
        return []
    return [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []


def check_overlaps(
    pool: IPv4Range, beyond: Sequence[UsedRange], cluster: Sequence[UsedRange], here: Sequence[UsedRange]
) -> None:
    """Rejects overlapping ranges before anything is created. `beyond` is behind the VPN, `here` is used by this
    machine.
    """
    if taken := list(_overlapping(pool, (*here, *beyond, *cluster))):
        raise ConfigError(
            "vpn-pool-overlaps",
            f"azure.vpn.p2sGatewayCIDR is {pool}, which overlaps {'; '.join(taken)}.",
            "Choose unused addresses for VPN clients, for example 172.31.255.0/24.",
        )
    # A route to the local network through the tunnel would disconnect the machine.
    for used in beyond:
        if taken := list(_overlapping(used.network, here)):
            raise MachineError(
                "vpn-network-overlaps",
                f"{used.what} has {used.network}, which overlaps {'; '.join(taken)}.",
                "The same addresses cannot exist on this machine and behind the VPN. Change the addresses of this "
                "site or of the network in Azure.",
            )


def is_taken(text: str, here: Iterable[UsedRange]) -> bool:
    return any(each.overlaps(other.network) for each in ipv4_ranges([text]) for other in here)


def _overlapping(network: IPv4Range, others: Iterable[UsedRange]) -> Iterator[str]:
    return (
        f"{one.what} {one.network}" if str(one.network) not in one.what else one.what
        for one in others
        if one.network.overlaps(network)
    )


def free_subnet(space: Iterable[Any], taken: Iterable[Any]) -> IPv4Range | None:
    """Returns a free range for the gateway, from the end of the address space, where conflicts are unlikely."""
    used = ipv4_ranges(taken)
    for whole in ipv4_ranges(space):
        free = [piece for piece in _subtract(whole, used) if piece.prefixlen <= GATEWAY_BITS]
        if free:
            last = max(free, key=lambda piece: int(piece.broadcast_address))
            size = 1 << (32 - GATEWAY_BITS)
            return IPv4Range((int(last.broadcast_address) - size + 1, GATEWAY_BITS))
    return None


def _subtract(whole: IPv4Range, used: Sequence[IPv4Range]) -> list[IPv4Range]:
    """Returns what remains of a range without the used ones."""
    pieces = [whole]
    for other in used:
        inside = [piece for piece in pieces if piece.overlaps(other)]
        pieces = [piece for piece in pieces if piece not in inside]
        for piece in inside:
            if other.subnet_of(piece):
                pieces += piece.address_exclude(other)
    return pieces


def cluster_ranges(properties: Mapping[str, Any]) -> list[UsedRange]:
    """Returns the pod and service ranges from the document of a cluster."""
    profile = properties.get("networkProfile") or {}
    pods = [profile.get("podCidr"), *(profile.get("podCidrs") or ())]
    services = [profile.get("serviceCidr"), *(profile.get("serviceCidrs") or ())]
    found = [
        *used_ranges("the cluster's pods", filter(None, pods)),
        *used_ranges("the cluster's services", filter(None, services)),
    ]
    return list(dict.fromkeys(found))


CLUSTER_API = "2025-05-01"
NETWORK_API = "2024-05-01"
ZONE_API = "2024-06-01"
GATEWAY_SUBNET = "GatewaySubnet"


@frozen
class VirtualNetwork:
    """The virtual network that the VPN connects to."""

    id: str  # ARM ID of the virtual network
    location: str
    address_ranges: tuple[str, ...]  # its ranges and those of peered networks
    own_ranges: tuple[str, ...]  # its ranges only
    subnets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gateway_in_use: str = ""  # ARM ID of a gateway in its gateway subnet
    name_servers: tuple[str, ...] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)  # properties of the cluster

    @property
    def group(self) -> str:
        """Returns the ARM ID of the resource group."""
        return "/".join(self.id.split("/")[:5])

    @property
    def routed_ranges(self) -> list[UsedRange]:
        return used_ranges("the network in Azure", self.address_ranges)


def find_virtual_network(arm: ArmClient, config: NodeConfig, known: str = "") -> VirtualNetwork:
    """Reads the network. `known` is its ID from an earlier run, for an identity that cannot list the networks of the
    cluster's nodes.
    """
    properties = arm.get(target_cluster_id(config), CLUSTER_API).get("properties") or {}
    try:
        network = config.azure.vpn.virtual_network_id or _cluster_network(arm, config, properties)
    except AzureCallError as error:
        if error.status != 403 or not known:
            raise
        network = known
    document = arm.find(network, NETWORK_API)
    if document is None:
        raise network_missing_error(f"{network} does not exist")
    return parse_virtual_network(document, properties)


def parse_virtual_network(document: Mapping[str, Any], cluster: Mapping[str, Any]) -> VirtualNetwork:
    """Parses the document of a virtual network."""
    properties = document.get("properties") or {}
    own = tuple((properties.get("addressSpace") or {}).get("addressPrefixes") or ())
    subnets = {str(each.get("name")): each.get("properties") or {} for each in properties.get("subnets") or ()}
    found: list[str] = []
    for each in properties.get("virtualNetworkPeerings") or ():
        peering = each.get("properties") or {}
        if peering.get("peeringState") == "Connected":
            found += (peering.get("remoteAddressSpace") or {}).get("addressPrefixes") or ()
    ids = (str(each.get("id", "")) for each in (subnets.get(GATEWAY_SUBNET) or {}).get("ipConfigurations") or ())
    marker = "/virtualnetworkgateways/"
    return VirtualNetwork(
        str(document["id"]),
        str(document.get("location", "")),
        (*own, *found),
        own,
        {
            name: tuple(each.get("addressPrefixes") or filter(None, [each.get("addressPrefix")]))
            for name, each in subnets.items()
        },
        next((one[: one.lower().index("/ipconfigurations/")] for one in ids if marker in one.lower()), ""),
        tuple((properties.get("dhcpOptions") or {}).get("dnsServers") or ()),
        cluster,
    )


def target_cluster_id(config: NodeConfig) -> str:
    found = resolved.target_cluster(config)
    if found is None:
        raise ConfigError(
            "vpn-cluster-id-missing",
            "The configuration does not set the AKS cluster that the VPN connects to.",
            "Set `azure.targetCluster.resourceId`.",
        )
    return resolved.cluster_resource_id(found)


def _cluster_network(arm: ArmClient, config: NodeConfig, properties: Mapping[str, Any]) -> str:
    """Returns the network of the cluster's nodes: the one of its agent pools, or the one that AKS created."""
    subnets = [str(each.get("vnetSubnetID") or "") for each in properties.get("agentPoolProfiles") or ()]
    if subnet := next((one for one in subnets if "/subnets/" in one.lower()), ""):
        return subnet[: subnet.lower().index("/subnets/")]
    group = properties.get("nodeResourceGroup")
    subscription = "/".join(target_cluster_id(config).split("/")[:3])
    path = f"{subscription}/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks"
    networks = arm.list(path, NETWORK_API) if group else []
    if len(networks) != 1:
        raise network_missing_error("the cluster does not specify its network")
    return str(networks[0]["id"])


def network_missing_error(cause: str) -> FlexError:
    return ConfigError(
        "vpn-network-not-found",
        f"The virtual network for the VPN was not found: {cause}.",
        "Set `azure.vpn.virtualNetworkId` to its ID. Run `az network vnet list --query [].id` to list the IDs.",
    )


def api_server_address(config: NodeConfig, cluster: Mapping[str, Any]) -> tuple[str, int]:
    """Returns host and port of the API server: from the configuration, else from the document of the cluster."""
    from urllib.parse import urlsplit

    url = urlsplit(config.node.kubelet.server_url or "")
    if url.hostname:
        return url.hostname, url.port or 443
    return str(cluster.get("privateFQDN") or cluster.get("fqdn") or ""), 443


def private_zone_address(arm: ArmClient, config: NodeConfig, cluster: Mapping[str, Any], name: str) -> str:
    """Returns the API server's private address from the cluster's private DNS zone, which Azure DNS resolves only
    inside of the network. Returns an empty string if it is missing or not accessible.
    """
    label, _, zone = name.partition(".")
    profile = cluster.get("apiServerAccessProfile") or {}
    configured = str(profile.get("privateDNSZone") or "")
    group = f"{'/'.join(target_cluster_id(config).split('/')[:3])}/resourceGroups/{cluster.get('nodeResourceGroup')}"
    path = configured if configured.startswith("/") else f"{group}/providers/Microsoft.Network/privateDnsZones/{zone}"
    try:
        record_set = arm.get(f"{path}/A/{label}", ZONE_API)
    except AzureCallError:
        return ""
    records = (record_set.get("properties") or {}).get("aRecords") or ()
    return next((str(each["ipv4Address"]) for each in records if each.get("ipv4Address")), "")
