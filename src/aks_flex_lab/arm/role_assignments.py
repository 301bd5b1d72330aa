"""Role assignments, stored in a file, and the built-in role definitions they refer to."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.documents import DocumentStore
from aks_flex_rp.auth.roles import covers, segments

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraDirectory


@dataclass(frozen=True)
class RoleDefinition:
    id: str
    name: str
    actions: tuple[str, ...]
    not_actions: tuple[str, ...] = ()
    data_actions: tuple[str, ...] = ()  # data actions, in the lab only of a cluster

    def allows(self, action: str) -> bool:
        requested = action.lower()
        return _matches_any(self.actions, requested) and not _matches_any(self.not_actions, requested)

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


def _matches_any(patterns: tuple[str, ...], action: str) -> bool:
    return any(fnmatchcase(action, pattern.lower()) for pattern in patterns)


AKS = "Microsoft.ContainerService/managedClusters"
ARC = "Microsoft.HybridCompute/machines"
COMMON_READS = ("Microsoft.Authorization/*/read", "Microsoft.Resources/*/read")

BUILT_IN_ROLES = (
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
        (f"{AKS}/*", *COMMON_READS),
    ),
    RoleDefinition(
        "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d",
        "Azure Kubernetes Service Flex Node Agent Role",
        (
            f"{AKS}/agentPools/listBootstrapData/action",
            f"{AKS}/agentPools/machines/read",
            f"{AKS}/agentPools/machines/write",
        ),
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
        (f"{AKS}/listClusterUserCredential/action", *COMMON_READS),
        data_actions=(f"{AKS}/*",),
    ),
    RoleDefinition(
        "4d97b98b-1d4f-4787-a291-c67834d212e7", "Network Contributor", ("Microsoft.Network/*", *COMMON_READS)
    ),
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
ROLES_BY_ID = {role.id: role for role in BUILT_IN_ROLES}


ASSIGNMENT_TYPE = "Microsoft.Authorization/roleAssignments"
_PRINCIPAL_FILTER = re.compile(r"(assignedTo|principalId)(?:\(| eq )'([^']*)'\)?", re.IGNORECASE)

RoleAssignment = dict[str, Any]


class RoleAssignments:
    def __init__(self, state: Path, directory: EntraDirectory) -> None:
        self._store = DocumentStore(state / "roleAssignments.json", "the lab's role assignments")
        self._directory = directory

    def all(self) -> list[RoleAssignment]:
        return self._store.all()

    def listed(self, scope: str, filter_text: str) -> list[RoleAssignment]:
        """Returns the assignments at and above a scope and, without `atScope()`, below it."""
        here = segments(scope)
        found = []
        for each in self.all():
            there = segments(each["properties"]["scope"])
            below = covers(here, there) and "atscope()" not in filter_text.lower()
            if covers(there, here) or below:
                found.append(each)
        return [each for each in found if self._fits(each, filter_text)]

    def find(self, id: str) -> RoleAssignment | None:  # noqa: A002 - ARM's own word
        return self._store.find(id)

    def allows(self, principal: str, action: str, scope: str) -> bool:
        """Returns whether a principal is allowed an action at a scope, directly or through its groups."""
        return any(role.allows(action) for role in self.roles(principal, scope))

    def roles(self, principal: str, scope: str) -> list[RoleDefinition]:
        """Returns the roles of a principal at a scope, directly or through its groups."""
        here, ids = segments(scope), self._ids(principal)
        properties = [each["properties"] for each in self.in_effect()]
        mine = [
            each
            for each in properties
            if each["principalId"].lower() in ids and covers(segments(each["scope"]), here)
        ]
        roles = (ROLES_BY_ID.get(each["roleDefinitionId"].rpartition("/")[2].lower()) for each in mine)
        return [role for role in roles if role]

    def in_effect(self) -> list[RoleAssignment]:
        """Returns the effective assignments: here, all of them."""
        return self.all()

    def put(self, scope: str, definition: str, principal: str, name: str = "") -> RoleAssignment:
        """Stores an assignment, and replaces one with the same name. `definition` is a role's GUID or resource ID."""
        role = definition.rpartition("/")[2]
        made = {
            "id": f"{scope.rstrip('/')}/providers/{ASSIGNMENT_TYPE}/{name or uuid.uuid4()}",
            "type": ASSIGNMENT_TYPE,
            "properties": {
                "roleDefinitionId": f"/providers/Microsoft.Authorization/roleDefinitions/{role}",
                "principalId": principal,
                "scope": scope or "/",
            },
        }
        made["name"] = str(made["id"]).rpartition("/")[2]
        self._store.put(made)
        return made

    def remove(self, id: str) -> None:  # noqa: A002
        self._store.remove(id)

    def _fits(self, assignment: RoleAssignment, filter_text: str) -> bool:
        principal = _PRINCIPAL_FILTER.search(filter_text)
        if principal is None:
            return True
        whom, who = assignment["properties"]["principalId"].lower(), principal[2].lower()
        return whom in self._ids(who) if principal[1].lower() == "assignedto" else whom == who

    def _ids(self, principal: str) -> set[str]:
        found = self._directory.find(principal)
        return {principal.lower(), *(each.lower() for each in (found.groups if found else ()))}
