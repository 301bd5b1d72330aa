"""Azure's built-in roles, as far as anybody here uses them: what each allows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class RoleDefinition:
    id: str
    name: str
    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()
    data_actions: tuple[str, ...] = ()  # on what is inside a resource: here, of a cluster

    def allows(self, action: str) -> bool:
        asked = action.lower()
        return _any(self.actions, asked) and not _any(self.not_actions, asked)

    def permissions(self) -> dict[str, object]:
        return {
            "actions": [*self.actions],
            "notActions": [*self.not_actions],
            "dataActions": [*self.data_actions],
            "notDataActions": [],
        }

    def shown(self) -> dict[str, object]:
        return {
            "id": f"/providers/Microsoft.Authorization/roleDefinitions/{self.id}",
            "name": self.id,
            "type": "Microsoft.Authorization/roleDefinitions",
            "properties": {
                "roleName": self.name,
                "type": "BuiltInRole",
                "description": self.name,
                "permissions": [self.permissions()],
                "assignableScopes": ["/"],
            },
        }


def _any(patterns: tuple[str, ...], action: str) -> bool:
    return any(fnmatchcase(action, pattern.lower()) for pattern in patterns)


AKS = "Microsoft.ContainerService/managedClusters"
ARC = "Microsoft.HybridCompute/machines"
COMMON = ("Microsoft.Authorization/*/read", "Microsoft.Resources/*/read")

BUILT_IN = (
    RoleDefinition("8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "Owner", ("*",)),
    RoleDefinition(
        "b24988ac-6180-42a0-ab88-20f7382dd24c",
        "Contributor",
        ("*",),
        ("Microsoft.Authorization/*/write", "Microsoft.Authorization/*/delete"),
    ),
    RoleDefinition("acdd72a7-3385-48ef-bd42-f606fba81ae7", "Reader", ("*/read",)),
    RoleDefinition(
        "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9",
        "User Access Administrator",
        ("*/read", "Microsoft.Authorization/*"),
    ),
    RoleDefinition(
        "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8",
        "Azure Kubernetes Service Contributor Role",
        (f"{AKS}/*", *COMMON),
    ),
    RoleDefinition(
        "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8",
        "Azure Kubernetes Service Cluster Admin Role",
        (f"{AKS}/listClusterAdminCredential/action", f"{AKS}/read"),
    ),
    RoleDefinition(
        "4abbcc35-e782-43d8-92c5-2d3f1bd2253f",
        "Azure Kubernetes Service Cluster User Role",
        (f"{AKS}/listClusterUserCredential/action", f"{AKS}/read"),
    ),
    RoleDefinition(
        "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b",
        "Azure Kubernetes Service RBAC Cluster Admin",
        (f"{AKS}/listClusterUserCredential/action", *COMMON),
        data_actions=(f"{AKS}/*",),
    ),
    RoleDefinition("4d97b98b-1d4f-4787-a291-c67834d212e7", "Network Contributor", ("Microsoft.Network/*", *COMMON)),
    RoleDefinition(
        "b64e21ea-ac4e-4cdf-9dc9-5b892992bee7",
        "Azure Connected Machine Onboarding",
        (f"{ARC}/read", f"{ARC}/write", "Microsoft.GuestConfiguration/*/read"),
    ),
    RoleDefinition(
        "cd570a14-e51a-42ad-bac8-bafd67325302",
        "Azure Connected Machine Resource Administrator",
        (f"{ARC}/*", "Microsoft.Resources/*/read"),
    ),
)
BY_ID = {role.id: role for role in BUILT_IN}
