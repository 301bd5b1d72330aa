"""The desired VPN gateway as ARM documents, and the differences of an existing gateway from it. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.vpn import virtual_network
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.vpn.client_certificate import ClientCertificate
    from aks_flex_node.agent.vpn.virtual_network import VirtualNetwork
    from aks_flex_node.settings.models import NodeConfig

Document = dict[str, Any]
PROTOCOL, AUTHENTICATION = "OpenVPN", "Certificate"


def gateway_document(
    config: NodeConfig, location: str, subnet: str, address: str, pair: ClientCertificate
) -> Document:
    """Returns the document of a new gateway with this machine's root certificate."""
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
                "vpnClientAddressPool": {"addressPrefixes": [config.azure.vpn.p2s_gateway_cidr]},
                "vpnClientProtocols": [PROTOCOL],
                "vpnAuthenticationTypes": [AUTHENTICATION],
                "vpnClientRootCertificates": [root_certificate(pair)],
            },
        },
    }


def public_address_document(config: NodeConfig, location: str) -> Document:
    zones = {"zones": ["1", "2", "3"]} if config.azure.vpn.gateway_sku.upper().endswith("AZ") else {}
    properties = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}
    return {"location": location, "sku": {"name": "Standard", "tier": "Regional"}, **zones, "properties": properties}


def subnet_range(config: NodeConfig, network: VirtualNetwork) -> str:
    """Returns the configured address range of the gateway's subnet, else a free range of the network."""
    configured = config.azure.vpn.gateway_subnet_cidr
    taken = [each for prefixes in network.subnets.values() for each in prefixes]
    if configured is None:
        free = virtual_network.free_subnet(network.own_ranges, taken)
        if free is None:
            raise _subnet_unfit_error(
                f"{network.id} has no free /{virtual_network.GATEWAY_BITS} for the gateway's subnet"
            )
        return str(free)
    requested = virtual_network.IPv4Range(configured)
    inside = any(requested.subnet_of(each) for each in virtual_network.ipv4_ranges(network.own_ranges))
    if not inside or any(each.overlaps(requested) for each in virtual_network.ipv4_ranges(taken)):
        problem = "overlaps another subnet of" if inside else "is outside of"
        raise _subnet_unfit_error(f"azure.vpn.gatewaySubnetCIDR is {requested}, which {problem} {network.id}")
    return str(requested)


def _subnet_unfit_error(what: str) -> ConfigError:
    return ConfigError(
        "vpn-subnet-invalid",
        f"{what}.",
        "Add addresses to the network (`az network vnet update --add addressSpace.addressPrefixes …`), or set "
        "`azure.vpn.gatewaySubnetCIDR` to a free range.",
    )


def differences(found: Document, config: NodeConfig) -> list[str]:
    """Returns how an existing gateway differs from the configuration. An empty list means that it is suitable.

    Raises ConfigError if Azure cannot change the gateway into a suitable one.
    """
    properties, settings = found.get("properties") or {}, config.azure.vpn
    if properties.get("gatewayType") != "Vpn" or properties.get("vpnType") != "RouteBased":
        raise ConfigError(
            "vpn-gateway-unsupported",
            f"The VPN gateway {found.get('id')} is not a route-based VPN gateway, which Azure cannot change.",
            "Set `azure.vpn.gatewayName` to another gateway, or `azure.vpn.virtualNetworkId` to another network.",
        )
    clients = properties.get("vpnClientConfiguration") or {}
    pools = (clients.get("vpnClientAddressPool") or {}).get("addressPrefixes") or []
    pairs = [
        ("client address pools", pools, [settings.p2s_gateway_cidr]),
        ("protocols", clients.get("vpnClientProtocols") or [], [PROTOCOL]),
        ("authentication", clients.get("vpnAuthenticationTypes") or [], [AUTHENTICATION]),
    ]
    found_differences = [
        f"{what} are {', '.join(map(str, existing)) or 'none'} instead of {', '.join(required)}"
        for what, existing, required in pairs
        if not set(required) <= set(map(str, existing))
    ]
    size = str((properties.get("sku") or {}).get("name", ""))
    # The SKU matters only if the configuration sets it.
    if settings.has_own_sku and size.lower() != settings.gateway_sku.lower():
        found_differences.append(f"the SKU is {size} instead of {settings.gateway_sku}")
    return found_differences


def adopt(found: Document, config: NodeConfig) -> bool:
    """Changes a gateway document to match the configuration, and preserves other settings. Returns whether it
    changed.
    """
    if not differences(found, config):
        return False
    properties = found["properties"]
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
