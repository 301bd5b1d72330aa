"""What the configuration wants of Azure Arc. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent.config import derived
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

# azcmagent's names for Azure's clouds, by those of the configuration.
CLOUDS = {
    "azurepubliccloud": "AzureCloud",
    "azureusgovernment": "AzureUSGovernment",
    "azurechinacloud": "AzureChinaCloud",
}


@dataclass(frozen=True)
class Wanted:
    """One machine in Azure Arc."""

    subscription: str
    resource_group: str
    name: str
    tenant: str
    location: str
    cloud: str
    tags: dict[str, str] = field(default_factory=dict)
    cluster: str = ""  # the ARM id of the cluster that it is to have roles on
    assign: bool = False

    @property
    def id(self) -> str:
        return machine_id(self.subscription, self.resource_group, self.name)

    @property
    def mark(self) -> str:
        """Changes when anything changes that is wanted."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def machine_id(subscription: str, group: str, name: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.HybridCompute/machines/{name}"


def same(one: str, other: str) -> bool:
    """ARM compares ids without regard to case."""
    return one.lower() == other.lower()


def wanted(config: NodeConfig, machine: Machine) -> Wanted:
    azure, cluster = config.azure, derived.cluster(config)
    arc, target = azure.arc, azure.target_cluster
    principal = azure.service_principal
    found = Wanted(
        subscription=azure.subscription_id or (cluster[0] if cluster else ""),
        resource_group=arc.resource_group or azure.resource_group or (cluster[1] if cluster else ""),
        name=arc.machine_name or machine.hostname,
        tenant=azure.tenant_id or (principal.tenant_id if principal else "") or "",
        location=arc.location or azure.location or (target.location if target else "") or "",
        cloud=CLOUDS.get(azure.cloud.lower(), azure.cloud),
        tags=dict(arc.tags),
        cluster=cluster_id(*cluster) if cluster else "",
        assign=arc.auto_role_assignment,
    )
    _require(found)
    return found


def cluster_id(subscription: str, group: str, name: str) -> str:
    return (
        f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService"
        f"/managedClusters/{name}"
    )


def _require(found: Wanted) -> None:
    keys = {
        "azure.subscriptionId": found.subscription,
        "azure.tenantId": found.tenant,
        "azure.resourceGroup": found.resource_group,
        "azure.location": found.location,
    }
    missing = [key for key, value in keys.items() if not value]
    if found.assign and not found.cluster:
        missing.append("azure.targetCluster.resourceId")
    if missing:
        raise ConfigError(
            "arc-settings-missing",
            f"To register with Azure Arc, the configuration must also say {', '.join(missing)}.",
            "Set them, or take azure.arc.enabled out.",
        )
