"""The desired Arc machine, derived from the configuration, and the record of what the agent created in Azure and
on this machine. The record is written before anything is created, so that unregistering knows what to remove.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, field
from typing import TYPE_CHECKING

from aks_flex_node.agent.config import resolved
from aks_flex_node.azure.roles import CLUSTER_USER, FLEX_NODE_AGENT, RBAC_CLUSTER_ADMIN, AzureRole, find_role
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.records import RecordStore
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


# azcmagent's cloud names by the names in the configuration.
AZCMAGENT_CLOUDS = {
    "azurepubliccloud": "AzureCloud",
    "azureusgovernment": "AzureUSGovernment",
    "azurechinacloud": "AzureChinaCloud",
}


@frozen
class ArcMachineSpec:
    """The desired machine resource in Azure Arc."""

    subscription: str
    resource_group: str
    name: str
    tenant: str
    location: str
    cloud: str
    tags: dict[str, str] = field(default_factory=dict)
    cluster: str = ""  # ARM ID of the cluster, or of its pool, on which the machine needs roles
    assign: bool = False
    roles: tuple[str, ...] | None = None  # configured roles; None for the default

    @property
    def id(self) -> str:
        return machine_id(self.subscription, self.resource_group, self.name)

    @property
    def fingerprint(self) -> str:
        """Changes when any part of the desired state changes."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def machine_id(subscription: str, group: str, name: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.HybridCompute/machines/{name}"


def same_id(one: str, other: str) -> bool:
    """Compares two ARM IDs, which are case-insensitive."""
    return one.lower() == other.lower()


def desired_machine(config: NodeConfig, machine: Machine) -> ArcMachineSpec:
    azure, cluster = config.azure, resolved.target_cluster(config)
    arc, settings = azure.arc, resolved.arc_settings(config)
    missing = [path for path, value in settings.items() if not value]
    if missing:
        raise ConfigError(
            "arc-settings-missing",
            f"Registration with Azure Arc requires these settings: {', '.join(missing)}.",
            "Set them, or set `azure.arc.enabled` to false.",
        )
    # The scope of the machine's roles: the cluster, or only the pool for a node of an AKS pool.
    scope = resolved.cluster_resource_id(cluster) if cluster else ""
    if cluster and azure.target_agent_pool_name:
        scope += f"/agentPools/{azure.target_agent_pool_name}"
    return ArcMachineSpec(
        subscription=settings["azure.subscriptionId"],
        resource_group=settings["azure.resourceGroup"],
        name=arc.machine_name or machine.hostname,
        tenant=settings["azure.tenantId"],
        location=settings["azure.location"],
        cloud=AZCMAGENT_CLOUDS.get(azure.cloud.lower(), azure.cloud),
        tags=dict(arc.tags),
        cluster=scope,
        assign=arc.auto_role_assignment,
        roles=arc.roles,
    )


def cluster_roles(config: NodeConfig) -> tuple[AzureRole, ...]:
    """Returns the roles of the machine's identity on the cluster: the configured ones, or the fewest with which the
    join works. A provider, or the cluster for a bootstrap token, grants access to Kubernetes itself.
    """
    if config.azure.arc.roles is not None:
        return tuple(role for each in config.azure.arc.roles if (role := find_role(each)))
    if config.azure.target_agent_pool_name:
        return (FLEX_NODE_AGENT,)
    needs_kubernetes = resolved.kubelet_auth(config) != "bootstrapToken" and not config.provider.url
    return (CLUSTER_USER, RBAC_CLUSTER_ADMIN) if needs_kubernetes else (CLUSTER_USER,)


@frozen
class ArcRecord:
    machine: str = ""  # ARM ID
    principal: str = ""  # object ID of the machine's identity
    connected: bool = False  # the agent connected azcmagent
    made: bool = False  # the machine did not exist in Azure before
    installed: bool = False  # the agent installed azcmagent
    found: tuple[str, ...] = ()  # users and directories of azcmagent that existed before the installation
    assignments: tuple[str, ...] = ()  # role assignments that the agent created
    gateway: str = ""  # VPN gateway on which the machine has the roles for renewals
    settled: str = ""  # fingerprint of the desired state that was last verified as complete


class ArcRecordStore(RecordStore[ArcRecord]):
    """The Arc record of this machine. An unreadable one counts as empty, so that nothing is removed."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        super().__init__(host, f"{config.paths.data_dir}/arc.json", ArcRecord)
