"""The desired VPN gateway as ARM documents, and the differences of an existing gateway from it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.vpn import virtual_network
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.client_certificate import ClientCertificate
    from aks_flex_node.agent.vpn.virtual_network import VirtualNetwork

Document = dict[str, Any]
PROTOCOL, AUTHENTICATION = "OpenVPN", "Certificate"


def gateway_document(
    config: NodeConfig, location: str, subnet: str, address: str, pair: ClientCertificate
) -> Document:
    """A new one, which knows this machine from the start."""
    sku = config.azure.vpn.gateway_sku
    configuration = {
        "name": "default",
        "properties": {
            "privateIPAllocationMethod": "Dynamic",
            "subnet": {"id": subnet},
            "publicIPAddress": {"id": address},
        },
    }
    return {
        "location": location,
        "properties": {
            "gatewayType": "Vpn",
            "vpnType": "RouteBased",
            "sku": {"name": sku, "tier": sku},
            "activeActive": False,
            "enableBgp": False,
            "ipConfigurations": [configuration],
            "vpnClientConfiguration": {
                **_client_settings(config),
                "vpnClientRootCertificates": [root_certificate(pair)],
            },
        },
    }


def _client_settings(config: NodeConfig) -> Document:
    return {
        "vpnClientAddressPool": {"addressPrefixes": [config.azure.vpn.p2s_gateway_cidr]},
        "vpnClientProtocols": [PROTOCOL],
        "vpnAuthenticationTypes": [AUTHENTICATION],
    }


def public_address_document(config: NodeConfig, location: str) -> Document:
    zones = {"zones": ["1", "2", "3"]} if config.azure.vpn.gateway_sku.upper().endswith("AZ") else {}
    properties = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}
    return {"location": location, "sku": {"name": "Standard", "tier": "Regional"}, **zones, "properties": properties}


def subnet_range(config: NodeConfig, network: VirtualNetwork) -> str:
    """As configured, else a free part of the network."""
    given = config.azure.vpn.gateway_subnet_cidr
    taken = [each for prefixes in network.subnets.values() for each in prefixes]
    if given is None:
        free = virtual_network.free_subnet(network.own_ranges, taken)
        if free is None:
            raise _subnet_unfit_error(
                f"{network.id} has no free /{virtual_network.GATEWAY_BITS} for a gateway's subnet"
            )
        return str(free)
    wanted = virtual_network.parse_range("azure.vpn.gatewaySubnetCIDR", given)
    inside = any(wanted.subnet_of(one.network) for one in virtual_network.used_ranges("", network.own_ranges))
    if not inside or any(one.network.overlaps(wanted) for one in virtual_network.used_ranges("", taken)):
        why = "overlaps another subnet of" if inside else "lies outside of"
        raise _subnet_unfit_error(f"azure.vpn.gatewaySubnetCIDR is {wanted}, which {why} {network.id}")
    return str(wanted)


def _subnet_unfit_error(what: str) -> ConfigError:
    return ConfigError(
        "vpn-subnet-invalid",
        f"{what}.",
        "Give the network more addresses (`az network vnet update --add addressSpace.addressPrefixes …`), or set "
        "azure.vpn.gatewaySubnetCIDR to a free part of it.",
    )


def differences(found: Document, config: NodeConfig) -> list[str]:
    """What of an existing gateway is not as this configuration has it; nothing when it will do as it is."""
    properties, settings = found.get("properties") or {}, config.azure.vpn
    if properties.get("gatewayType") != "Vpn" or properties.get("vpnType") != "RouteBased":
        kind = f"{properties.get('gatewayType')}, {properties.get('vpnType')}"
        return [f"it is {kind}, and not Vpn, RouteBased (which cannot be changed: name another gateway)"]
    clients = properties.get("vpnClientConfiguration") or {}
    pools = (clients.get("vpnClientAddressPool") or {}).get("addressPrefixes") or []
    pairs = [
        ("addresses for clients", pools, [settings.p2s_gateway_cidr]),
        ("protocols", clients.get("vpnClientProtocols") or [], [PROTOCOL]),
        ("authentication", clients.get("vpnAuthenticationTypes") or [], [AUTHENTICATION]),
    ]
    found_words = [
        f"{what} are {', '.join(map(str, there)) or 'none'} instead of {', '.join(here)}"
        for what, there, here in pairs
        if not set(here) <= set(map(str, there))
    ]
    size = str((properties.get("sku") or {}).get("name", ""))
    # Its size is of interest only to whoever says something about it.
    if settings.has_own_sku and size.lower() != settings.gateway_sku.lower():
        found_words.append(f"size is {size} instead of {settings.gateway_sku}")
    return found_words


def adopt(found: Document, config: NodeConfig) -> bool:
    """Change a gateway's document so that nothing differs; what others have in it stays. Whether that is a change."""
    if not differences(found, config):
        return False
    properties = found["properties"]
    if properties.get("gatewayType") != "Vpn" or properties.get("vpnType") != "RouteBased":
        raise ConfigError(
            "vpn-gateway-unsupported",
            f"The VPN gateway {found.get('id')} is no route-based VPN gateway, and Azure cannot make it one.",
            "Name another with azure.vpn.gatewayName, or another network with azure.vpn.virtualNetworkId.",
        )
    clients = properties.setdefault("vpnClientConfiguration", None) or {}
    types = clients.get("vpnAuthenticationTypes") or []
    protocols = clients.get("vpnClientProtocols") or []
    pool, ours = clients.get("vpnClientAddressPool") or {}, config.azure.vpn.p2s_gateway_cidr
    properties["vpnClientConfiguration"] = {
        **clients,
        "vpnClientAddressPool": pool if ours in (pool.get("addressPrefixes") or ()) else {"addressPrefixes": [ours]},
        "vpnClientProtocols": [*dict.fromkeys([*protocols, PROTOCOL])],
        "vpnAuthenticationTypes": [*dict.fromkeys([*types, AUTHENTICATION])],
    }
    if config.azure.vpn.has_own_sku:
        sku = config.azure.vpn.gateway_sku
        properties["sku"] = {"name": sku, "tier": sku}
    return True


def root_certificate(pair: ClientCertificate) -> Document:
    return {"name": pair.name, "properties": {"publicCertData": pair.root}}


def root_certificates(found: Document) -> list[Document]:
    clients = (found.get("properties") or {}).get("vpnClientConfiguration") or {}
    return list(clients.get("vpnClientRootCertificates") or [])


def set_root_certificates(found: Document, certificates: list[Document]) -> None:
    clients = found["properties"].get("vpnClientConfiguration") or {}
    found["properties"]["vpnClientConfiguration"] = {**clients, "vpnClientRootCertificates": certificates}


def certificate_data(certificate: Document) -> str:
    return str((certificate.get("properties") or {}).get("publicCertData") or "")
