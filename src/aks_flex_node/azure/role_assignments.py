"""Role assignments in Azure.

The name of an assignment follows from its content, so an interrupted run finds it again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_node.retry import RetryDeadline

ROLE_API_VERSION = "2022-04-01"
ASSIGNMENT_TYPE = "providers/Microsoft.Authorization/roleAssignments"
AKS_TYPE = "Microsoft.ContainerService/managedClusters"
ASSIGNMENT_NAMESPACE = uuid.UUID(
    "3b1f4d1e-6a5c-5f0e-9d0b-8a6f2c1e7d40"
)  # what our names are made in; any would do, but always the same


@dataclass(frozen=True)
class AzureRole:
    id: str
    name: str
    action: str = ""  # one thing that it allows and by which it is known to be in effect
    data_action: str = ""


# What a node's identity needs on its cluster.
NODE_ROLES = (
    AzureRole("acdd72a7-3385-48ef-bd42-f606fba81ae7", "Reader", f"{AKS_TYPE}/read"),
    AzureRole(
        "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b",
        "Azure Kubernetes Service RBAC Cluster Admin",
        data_action=f"{AKS_TYPE}/nodes/write",
    ),
    AzureRole(
        "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8",
        "Azure Kubernetes Service Cluster Admin Role",
        f"{AKS_TYPE}/listClusterAdminCredential/action",
    ),
)


class RolesClient(Protocol):
    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]: ...

    def put(self, path: str, api_version: str, body: Any) -> dict[str, Any]: ...

    def delete(self, path: str, api_version: str) -> None: ...

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]: ...


def assignment_id(scope: str, role: AzureRole, principal: str) -> str:
    name = uuid.uuid5(ASSIGNMENT_NAMESPACE, f"{scope}|{role.id}|{principal}".lower())
    return f"{scope.rstrip('/')}/{ASSIGNMENT_TYPE}/{name}"


def assign(
    arm: RolesClient,
    scope: str,
    role: AzureRole,
    principal: str,
    deadline: RetryDeadline,
    note: Callable[[str], None],
) -> bool:
    """Give a role; False when somebody else has given it already.

    A principal that was made a moment ago is not known everywhere: that passes. A refusal does not.
    """
    subscription = "/".join(scope.split("/")[:3])
    definition = f"{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role.id}"
    # With the kind of the principal told, Azure does not insist on finding it in its directory first.
    properties = {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    while True:
        try:
            arm.put(assignment_id(scope, role, principal), ROLE_API_VERSION, {"properties": properties})
        except AzureCallError as error:
            if error.code == "RoleAssignmentExists":
                return False
            if error.status == 403:
                raise assignment_forbidden_error(scope, role, principal, error) from error
            if not (error.retryable or error.code == "PrincipalNotFound") or not deadline.pause():
                raise
            unknown = error.code == "PrincipalNotFound"
            cause = "Azure does not know the machine's identity yet" if unknown else error.message.rstrip(".")
            note(f"{cause} ({deadline.waited:.0f} s)")
            continue
        return True


def unassign(arm: RolesClient, assignment: str) -> None:
    """One that is gone already is as good."""
    try:
        arm.delete(assignment, ROLE_API_VERSION)
    except AzureCallError as error:
        if error.status != 404:
            raise


def missing_roles(arm: RolesClient, scope: str, roles: Iterable[AzureRole]) -> list[AzureRole]:
    """Those of the roles that are not in effect for whoever asks."""
    try:
        found = arm.list(f"{scope}/providers/Microsoft.Authorization/permissions", ROLE_API_VERSION)
    except AzureCallError as error:
        if error.status != 403:
            raise
        return list(roles)  # whoever may do nothing may not even ask
    return [role for role in roles if not _in_effect(role, found)]


def _in_effect(role: AzureRole, permissions: list[dict[str, Any]]) -> bool:
    return (not role.action or _allowed(role.action, permissions, "actions", "notActions")) and (
        not role.data_action or _allowed(role.data_action, permissions, "dataActions", "notDataActions")
    )


def _allowed(action: str, permissions: list[dict[str, Any]], yes: str, no: str) -> bool:
    def matches(patterns: list[str] | None) -> bool:
        return any(fnmatchcase(action.lower(), str(pattern).lower()) for pattern in patterns or ())

    return any(matches(each.get(yes)) and not matches(each.get(no)) for each in permissions)


def assignment_command(scope: str, role: AzureRole, principal: str) -> str:
    """What somebody types who may give roles."""
    return (
        f"az role assignment create --assignee-object-id {principal} --assignee-principal-type ServicePrincipal "
        f'--role "{role.name}" --scope {scope}'
    )


def assignment_forbidden_error(scope: str, role: AzureRole, principal: str, error: AzureCallError) -> FlexError:
    return FlexError(
        "role-assignment-forbidden",
        f"The role {role.name} on {scope} could not be given: {error.message}",
        "Whoever registers needs the role User Access Administrator (or Owner) there; or let somebody who has it "
        f"run: {assignment_command(scope, role, principal)}",
    )
