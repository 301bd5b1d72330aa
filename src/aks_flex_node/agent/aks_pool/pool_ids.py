"""Resource IDs of a flex node pool and of a Machine in it. Pure functions."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.resolved import cluster_resource_id, has_azure_identity, target_cluster
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig

API_VERSION = "2026-08-02-preview"  # of all requests about flex node pools
MACHINE_NAME = re.compile(r"[a-zA-Z0-9][-_a-zA-Z0-9]{0,39}")
_POOL_ID = re.compile(
    r"/subscriptions/([\w.()-]+)/resourcegroups/([\w.()-]+)/providers/microsoft\.containerservice/managedclusters/"
    r"([\w.()-]+)/agentpools/([\w.()-]+)/?",
    re.IGNORECASE | re.ASCII,
)


@frozen
class PoolId:
    """The name of a node pool with its cluster, resource group and subscription."""

    subscription: str
    group: str
    cluster: str
    pool: str

    @property
    def cluster_id(self) -> str:
        return cluster_resource_id((self.subscription, self.group, self.cluster))

    def __str__(self) -> str:
        return f"{self.cluster_id}/agentPools/{self.pool}"

    def machine_id(self, machine: str) -> str:
        return f"{self}/machines/{machine}"

    @property
    def az_options(self) -> str:
        """The options that name this pool in commands of `az aks nodepool`."""
        group, cluster = shlex.quote(self.group), shlex.quote(self.cluster)
        return (
            f"--subscription {self.subscription} --resource-group {group} --cluster-name {cluster} --name {self.pool}"
        )

    @property
    def bootstrap_data_command(self) -> str:
        return f"az aks nodepool get-bootstrap-data {self.az_options}"

    def delete_machine_command(self, machine: str) -> str:
        return f"az aks nodepool delete-machines {self.az_options} --machine-names {machine}"


def parse_pool_id(text: str) -> PoolId:
    """Parses the resource ID of a pool. Raises CommandUsageError if it is not one."""
    parts = _POOL_ID.fullmatch(text.strip())
    if parts is None or {".", ".."} & set(parts.groups()):
        raise CommandUsageError(
            "aks-pool-id-invalid",
            f"`{text.strip()}` is not the resource ID of a node pool of an AKS cluster.",
            "Use the ID that `az aks nodepool show --query id` prints: "
            "/subscriptions/…/resourceGroups/…/providers/Microsoft.ContainerService/managedClusters/…/agentPools/….",
        )
    return PoolId(*parts.groups())


def configured_pool(config: NodeConfig) -> PoolId | None:
    """Returns the pool of a configuration, or None if it names no pool or not the whole cluster."""
    cluster, pool = target_cluster(config), config.azure.target_agent_pool_name
    return PoolId(*cluster, pool) if cluster and pool else None


def machine_name(config: NodeConfig, node: str) -> str:
    """Returns the name of the node's Machine in the pool."""
    return config.aks.machine_name or node


def check_machine_name(name: str) -> None:
    """Raises ConfigError if AKS does not accept the name of a Machine."""
    if not MACHINE_NAME.fullmatch(name):
        raise ConfigError(
            "machine-name-invalid",
            f"AKS does not accept `{name}` as the name of a Machine: it must have 1 to 40 letters, digits, hyphens "
            "and underscores, and begin with a letter or digit. By default it is the name of the node. Nothing was "
            "changed.",
            "Run the same command with another name, for example `--set node.name=edge-2`. If this machine joined "
            "without an identity, run `aks-flex-node unbootstrap` first.",
        )


def new_token_hint(config: NodeConfig) -> str:
    """Returns how to get a new bootstrap token from the pool of a configuration; empty if it names no pool."""
    pool = configured_pool(config)
    if pool is None:
        return ""
    if has_azure_identity(config):
        return "Run the same command again. It requests a new token from the pool."
    return (
        f"Run `{pool.bootstrap_data_command} > base-config.json` where `az` is signed in, copy the file to this "
        "machine, and run the same command again with the new file."
    )
