"""Whom the agent asks, and as whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from aks_flex_node.agent.artifacts.sources import Sources
from aks_flex_node.agent.config.derived import cluster
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

API_VERSION = "2026-05-01-preview"
CLOUDS = {  # resource manager, and where tokens come from
    "azurepubliccloud": ("https://management.azure.com", "https://login.microsoftonline.com"),
    "azurechinacloud": ("https://management.chinacloudapi.cn", "https://login.chinacloudapi.cn"),
    "azureusgovernment": ("https://management.usgovcloudapi.net", "https://login.microsoftonline.us"),
}


@dataclass(frozen=True)
class Endpoint:
    """The resource of one node, at one provider."""

    origin: str
    path: str  # of the resource
    trust: bytes | None = None  # CA certificates (PEM) that vouch for it; the system's when left out

    def url(self, action: str = "") -> str:
        tail = f"/{action}" if action else ""
        return f"{self.origin}{self.path}{tail}?api-version={API_VERSION}"


def endpoint(config: NodeConfig, node: str) -> Endpoint:
    """Where this node's configuration is."""
    found = cluster(config)
    if found is None:
        raise ConfigError(
            "cluster-unnamed",
            "The configuration does not say which AKS cluster this node belongs to, so it cannot be followed.",
            "Set azure.targetCluster.resourceId, or continuousMonitoring: false.",
        )
    subscription, group, name = (quote(part, safe="") for part in found)
    path = (
        f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService"
        f"/managedClusters/{name}/flexNodeConfig/{quote(node, safe='')}"
    )
    given = config.provider.ca_cert_data or (None if config.provider.url else config.azure.ca_cert_data)
    return Endpoint(config.provider.url or resource_manager(config), path, read_certificate(given) if given else None)


def resource_manager(config: NodeConfig) -> str:
    return config.azure.resource_manager or _cloud(config)[0]


def authority_host(config: NodeConfig) -> str:
    return config.azure.authority_host or _cloud(config)[1]


def scope(config: NodeConfig) -> str:
    """What a token for the provider is asked for. An audience that ends with a slash keeps it, as Entra wants it."""
    return f"{config.provider.audience or resource_manager(config)}/.default"


def require_identity(config: NodeConfig) -> None:
    """Raise when nobody could sign in with this configuration."""
    azure = config.azure
    if azure.service_principal is None and azure.managed_identity is None:
        raise ConfigError(
            "azure-identity-missing",
            "The configuration names no Azure identity, so the agent cannot follow it.",
            "Set azure.servicePrincipal or azure.managedIdentity; or continuousMonitoring: false.",
        )
    principal = azure.service_principal
    if principal and not (principal.client_secret and (principal.tenant_id or azure.tenant_id)):
        missing = "tenantId" if principal.client_secret else "clientSecret"
        raise ConfigError(
            "azure-identity-incomplete",
            f"azure.servicePrincipal has no {missing}, so the agent cannot sign in.",
            "Join again with a URL from the provider, which carries it, or set it in the configuration.",
        )


def _cloud(config: NodeConfig) -> tuple[str, str]:
    known = CLOUDS.get(config.azure.cloud.lower())
    if known is None:
        raise ConfigError(
            "cloud-unknown",
            f"azure.cloud is {config.azure.cloud}, and where that is, is not known.",
            f"Use one of {', '.join(CLOUDS)}, or set azure.resourceManager and azure.authorityHost.",
        )
    return known


def ways_out(config: NodeConfig) -> Sources:
    """The proxies that lead to the provider."""
    return Sources(
        http_proxy=config.proxy.http,
        https_proxy=config.proxy.https,
        no_proxy=config.proxy.no_proxy,
        parallel=2,
        stall_seconds=30.0,
    )
