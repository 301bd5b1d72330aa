"""Built-in roles of Azure that the agent assigns. All commands import this module, so it imports nothing slow."""

from __future__ import annotations

import re

from aks_flex_node.lean_dataclass import frozen

AKS_TYPE = "Microsoft.ContainerService/managedClusters"
_ROLE_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@frozen
class AzureRole:
    id: str
    name: str
    action: str = ""  # an action that the role allows, used to check that it is effective
    data_action: str = ""


READER = AzureRole("acdd72a7-3385-48ef-bd42-f606fba81ae7", "Reader", f"{AKS_TYPE}/read")
CLUSTER_USER = AzureRole(
    "4abbcc35-e782-43d8-92c5-2d3f1bd2253f",
    "Azure Kubernetes Service Cluster User Role",
    f"{AKS_TYPE}/listClusterUserCredential/action",
)
CLUSTER_ADMIN = AzureRole(
    "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8",
    "Azure Kubernetes Service Cluster Admin Role",
    f"{AKS_TYPE}/listClusterAdminCredential/action",
)
RBAC_CLUSTER_ADMIN = AzureRole(
    "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b",
    "Azure Kubernetes Service RBAC Cluster Admin",
    data_action=f"{AKS_TYPE}/nodes/write",
)
FLEX_NODE_AGENT = AzureRole(
    "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d",
    "Azure Kubernetes Service Flex Node Agent Role",
    f"{AKS_TYPE}/agentPools/machines/write",
)
NETWORK_CONTRIBUTOR = AzureRole("4d97b98b-1d4f-4787-a291-c67834d212e7", "Network Contributor")
CLUSTER_ROLES = (READER, RBAC_CLUSTER_ADMIN, CLUSTER_ADMIN, CLUSTER_USER, FLEX_NODE_AGENT)


def find_role(text: str) -> AzureRole | None:
    """Returns a role by its name or the ID of its definition. The permissions of a role with an ID are not known."""
    known = next((role for role in CLUSTER_ROLES if text.lower() in {role.name.lower(), role.id}), None)
    return known or (AzureRole(text.lower(), text) if _ROLE_ID.fullmatch(text) else None)
