"""Whom the agent asks, and as whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from aks_flex_node.agent.config.derived import cluster
from aks_flex_node.agent.identities.clouds import resource_manager
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

API_VERSION = "2026-05-01-preview"


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


def scope(config: NodeConfig) -> str:
    """What a token for the provider is asked for. An audience that ends with a slash keeps it, as Entra wants it."""
    return f"{config.provider.audience or resource_manager(config)}/.default"
