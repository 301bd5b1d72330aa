"""Role assignments in Azure.

The name of an assignment is derived from its content, so that an interrupted run finds it again.
"""

from __future__ import annotations

import uuid
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.error_messages import role_assignment_command
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_node.azure.arm import ArmClient
    from aks_flex_node.azure.roles import AzureRole
    from aks_flex_node.retry import RetryDeadline

Document = dict[str, Any]

ROLE_API_VERSION = "2022-04-01"
ASSIGNMENT_TYPE = "providers/Microsoft.Authorization/roleAssignments"
ASSIGNMENT_NAMESPACE = uuid.UUID(
    "3b1f4d1e-6a5c-5f0e-9d0b-8a6f2c1e7d40"
)  # namespace of assignment names; must never change


def assignment_id(scope: str, role: AzureRole, principal: str) -> str:
    name = uuid.uuid5(ASSIGNMENT_NAMESPACE, f"{scope}|{role.id}|{principal}".lower())
    return f"{scope.rstrip('/')}/{ASSIGNMENT_TYPE}/{name}"


def assign(
    arm: ArmClient,
    scope: str,
    role: AzureRole,
    principal: str,
    deadline: RetryDeadline,
    note: Callable[[str], None],
) -> bool:
    """Assigns a role. Returns False if the assignment already exists under another name.

    A new principal is not known everywhere in Azure immediately, so this is retried. Other rejections are not.
    """
    subscription = "/".join(scope.split("/")[:3])
    definition = f"{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role.id}"
    # With principalType, Azure does not look up the principal in the directory first.
    properties = {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    while True:
        try:
            arm.put(assignment_id(scope, role, principal), ROLE_API_VERSION, {"properties": properties})
        except AzureCallError as error:
            if error.code == "RoleAssignmentExists":
                return False
            if error.status == 403:
                raise FlexError(
                    "role-assignment-forbidden",
                    f"The role {role.name} on {scope} could not be assigned: {error.message}",
                    "The operator needs the role User Access Administrator (or Owner) on this scope. Or set "
                    "`azure.arc.autoRoleAssignment` to false, and ask a user with this role to run: "
                    f"{assignment_command(scope, role, principal)}",
                ) from error
            if not (error.retryable or error.code == "PrincipalNotFound") or not deadline.pause():
                raise
            unknown = error.code == "PrincipalNotFound"
            cause = "Azure does not know the machine's identity yet" if unknown else error.message.rstrip(".")
            note(f"{cause} ({deadline.waited:.0f} s)")
            continue
        return True


def missing_roles(arm: ArmClient, scope: str, roles: Iterable[AzureRole]) -> list[AzureRole]:
    """Returns the roles that are not effective for the caller."""
    try:
        found = arm.list(f"{scope}/providers/Microsoft.Authorization/permissions", ROLE_API_VERSION)
    except AzureCallError as error:
        if error.status != 403:
            raise
        return list(roles)  # without any role, the caller cannot list its permissions
    return [role for role in roles if not _in_effect(role, found)]


def _in_effect(role: AzureRole, permissions: list[Document]) -> bool:
    return (not role.action or _allowed(role.action, permissions, "actions", "notActions")) and (
        not role.data_action or _allowed(role.data_action, permissions, "dataActions", "notDataActions")
    )


def _allowed(action: str, permissions: list[Document], allow: str, deny: str) -> bool:
    def matches(patterns: list[str] | None) -> bool:
        return any(fnmatchcase(action.lower(), str(pattern).lower()) for pattern in patterns or ())

    return any(matches(each.get(allow)) and not matches(each.get(deny)) for each in permissions)


def assignment_command(scope: str, role: AzureRole, principal: str) -> str:
    """Returns the az command that assigns a role."""
    return role_assignment_command(principal, role.name, scope, "ServicePrincipal")
