"""The network to reach: the one that is configured, else the cluster's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import derived
from aks_flex_node.agent.vpn import overlaps
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.overlaps import Used
    from aks_flex_node.azure.operations import Sender

CLUSTER_API = "2025-05-01"
NETWORK_API = "2024-05-01"
ZONE_API = "2024-06-01"
GATEWAY_SUBNET = "GatewaySubnet"


@dataclass(frozen=True)
class Place:
    """What a VPN is to lead to."""

    id: str  # of the virtual network
    location: str
    spaces: tuple[str, ...]  # its addresses, and those of networks beside it that it is joined with
    own: tuple[str, ...]  # its addresses alone
    subnets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gateway_in_use: str = ""  # the id of a gateway that its subnet holds
    name_servers: tuple[str, ...] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)  # the cluster's properties

    @property
    def group(self) -> str:
        """The path of its resource group."""
        return "/".join(self.id.split("/")[:5])

    @property
    def beyond(self) -> list[Used]:
        return overlaps.ranges("the network in Azure", self.spaces)


def find(sender: Sender, config: NodeConfig) -> Place:
    cluster = _cluster(sender, config)
    properties = cluster.get("properties") or {}
    network = config.azure.vpn.virtual_network_id or _own(sender, config, properties)
    try:
        document = sender.send("GET", network, NETWORK_API).body
    except AzureCallError as error:
        if error.status == 404:
            raise missing(f"there is no network {network}") from error
        raise
    return place(document, properties)


def place(document: Mapping[str, Any], cluster: Mapping[str, Any]) -> Place:
    """A virtual network's document, read."""
    properties = document.get("properties") or {}
    own = tuple((properties.get("addressSpace") or {}).get("addressPrefixes") or ())
    subnets = {str(each.get("name")): each.get("properties") or {} for each in properties.get("subnets") or ()}
    return Place(
        str(document["id"]),
        str(document.get("location", "")),
        (*own, *_peers(properties)),
        own,
        {name: _prefixes(each) for name, each in subnets.items()},
        _gateway_of(subnets.get(GATEWAY_SUBNET) or {}),
        tuple((properties.get("dhcpOptions") or {}).get("dnsServers") or ()),
        cluster,
    )


def _prefixes(subnet: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(subnet.get("addressPrefixes") or filter(None, [subnet.get("addressPrefix")]))


def _peers(properties: Mapping[str, Any]) -> list[str]:
    """Networks that are reached by way of this one."""
    found: list[str] = []
    for each in properties.get("virtualNetworkPeerings") or ():
        told = each.get("properties") or {}
        if told.get("peeringState") == "Connected":
            found += (told.get("remoteAddressSpace") or {}).get("addressPrefixes") or ()
    return found


def _gateway_of(subnet: Mapping[str, Any]) -> str:
    ids = (str(each.get("id", "")) for each in subnet.get("ipConfigurations") or ())
    mark = "/virtualnetworkgateways/"
    return next((one[: one.lower().index("/ipconfigurations/")] for one in ids if mark in one.lower()), "")


def cluster_id(config: NodeConfig) -> str:
    found = derived.cluster(config)
    if found is None:
        raise ConfigError(
            "vpn-cluster-unnamed",
            "The configuration does not say which AKS cluster the VPN is to lead to.",
            "Set azure.targetCluster.resourceId.",
        )
    subscription, group, name = found
    kind = "Microsoft.ContainerService/managedClusters"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{kind}/{name}"


def _cluster(sender: Sender, config: NodeConfig) -> Mapping[str, Any]:
    told = sender.send("GET", cluster_id(config), CLUSTER_API).body
    return told if isinstance(told, dict) else {}


def _own(sender: Sender, config: NodeConfig, properties: Mapping[str, Any]) -> str:
    """The network of the cluster's nodes: theirs by name, or the one that AKS made for them."""
    subnets = [str(each.get("vnetSubnetID") or "") for each in properties.get("agentPoolProfiles") or ()]
    if named := next((one for one in subnets if "/subnets/" in one.lower()), ""):
        return named[: named.lower().index("/subnets/")]
    group = properties.get("nodeResourceGroup")
    subscription = "/".join(cluster_id(config).split("/")[:3])
    path = f"{subscription}/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks"
    told = (sender.send("GET", path, NETWORK_API).body or {}).get("value") or [] if group else []
    if len(told) != 1:
        raise missing("the cluster does not say which it has")
    return str(told[0]["id"])


def missing(why: str) -> FlexError:
    return ConfigError(
        "vpn-network-missing",
        f"The network that the VPN is to lead to was not found: {why}.",
        "Set azure.vpn.virtualNetworkId to its id: `az network vnet list --query [].id`.",
    )


def api_server(config: NodeConfig, cluster: Mapping[str, Any]) -> tuple[str, int]:
    """Name and port of the API server: as configured, else as the cluster's document says."""
    from urllib.parse import urlsplit

    url = urlsplit(config.node.kubelet.server_url or "")
    if url.hostname:
        return url.hostname, url.port or 443
    return str(cluster.get("privateFQDN") or cluster.get("fqdn") or ""), 443


def zone_address(sender: Sender, config: NodeConfig, cluster: Mapping[str, Any], name: str) -> str:
    """The API server's private address by the cluster's private DNS zone, which Azure's own name servers show only
    inside the network; nothing when there is none, or when we may not see it."""
    label, _, zone = name.partition(".")
    profile = cluster.get("apiServerAccessProfile") or {}
    given = str(profile.get("privateDNSZone") or "")
    group = f"{'/'.join(cluster_id(config).split('/')[:3])}/resourceGroups/{cluster.get('nodeResourceGroup')}"
    path = given if given.startswith("/") else f"{group}/providers/Microsoft.Network/privateDnsZones/{zone}"
    try:
        told = sender.send("GET", f"{path}/A/{label}", ZONE_API).body or {}
    except AzureCallError:
        return ""
    records = (told.get("properties") or {}).get("aRecords") or ()
    return next((str(each["ipv4Address"]) for each in records if each.get("ipv4Address")), "")
