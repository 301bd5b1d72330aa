"""Tests of the authorization matrix: every role, operation and scope."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.auth.auth_settings import Role, RoleGrant
from aks_flex_rp.auth.roles import Operation, Roles
from aks_flex_rp.callers import Caller, CallerKind

SUBSCRIPTION = "11111111-0000-4000-8000-00000000000a"
OTHER_SUBSCRIPTION = "11111111-0000-4000-8000-00000000000b"
ME = "cccccccc-0000-4000-8000-000000000003"
MY_APPLICATION = "dddddddd-0000-4000-8000-000000000004"
MY_GROUP = "eeeeeeee-0000-4000-8000-000000000005"
SOMEBODY = "ffffffff-0000-4000-8000-000000000006"

CLUSTER = ClusterId(SUBSCRIPTION, "edge", "plant")
TENANT = "99999999-0000-4000-8000-000000000009"
OWN = frozenset({ME, MY_APPLICATION})
CALLER = Caller(ME, "me", CallerKind.APPLICATION, TENANT, OWN | {MY_GROUP}, OWN)

# The columns are those of COLUMNS, in their order.
TABLE: dict[Role | None, str] = {
    Role.OWNER: "       yes yes yes yes yes yes yes yes yes no  yes yes yes yes yes yes yes yes yes yes",
    Role.CONTRIBUTOR: " yes yes yes yes yes yes no  yes no  no  yes yes yes yes yes yes yes yes yes yes",
    Role.READER: "      yes yes no  no  no  no  no  yes no  no  no  yes no  no  no  yes no  no  yes no",
    None: "             no  no  no  no  no  no  no  no  no  no  no  no  no  no  no  no  no  no  no  no",
}
OWN_NODE = (
    "           yes  no   no   no   yes  yes  yes  no   no   yes  no   no   no   no   no   no   no   no   no   no"
)
COLUMNS = (
    Operation.READ,
    Operation.LIST,
    Operation.WRITE,
    Operation.DELETE,
    Operation.REGENERATE_TOKEN,
    Operation.REPORT_STATUS,
    Operation.LIST_CREDENTIALS,
    Operation.AUDIT,
    Operation.WRITE_TRUSTED,
    Operation.ROTATE_KEY,
    Operation.REVOKE_KEY,
    Operation.READ_POOL,
    Operation.WRITE_POOL,
    Operation.DELETE_POOL,
    Operation.APPLY_POOL,
    Operation.READ_ENROLMENT,
    Operation.WRITE_ENROLMENT,
    Operation.RELEASE,
    Operation.READ_ROLLOUT,
    Operation.WRITE_ROLLOUT,
)

# Scopes of a grant, and whether each includes the cluster.
SCOPES = {
    "/": True,
    f"/subscriptions/{SUBSCRIPTION}": True,
    f"/subscriptions/{SUBSCRIPTION}/": True,
    f"/SUBSCRIPTIONS/{SUBSCRIPTION.upper()}": True,
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/edge": True,
    f"/subscriptions/{SUBSCRIPTION}/resourcegroups/EDGE": True,
    str(CLUSTER): True,
    str(CLUSTER).upper(): True,
    f"/subscriptions/{OTHER_SUBSCRIPTION}": False,
    f"/subscriptions/{OTHER_SUBSCRIPTION}/resourceGroups/edge": False,
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/edge2": False,
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/edg": False,  # a prefix of the text, but another group
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/other": False,
    str(ClusterId(SUBSCRIPTION, "edge", "plant2")): False,
    str(ClusterId(SUBSCRIPTION, "edge", "plan")): False,
    str(ClusterId(SUBSCRIPTION, "other", "plant")): False,
    str(ClusterId(OTHER_SUBSCRIPTION, "edge", "plant")): False,
}


def expected(row: str, operation: Operation) -> bool:
    return row.split()[COLUMNS.index(operation)] == "yes"


def allowed(roles: Roles, operation: Operation, caller: Caller = CALLER, node_identity: str = "") -> bool:
    """Returns whether an operation is allowed; checks that both methods agree when no request is needed."""
    now = roles.allows_now(caller, operation, CLUSTER, node_identity)
    assert now is asyncio.run(roles.allows(caller, operation, CLUSTER, node_identity))
    return bool(now)


def test_role_table_covers_every_operation() -> None:
    assert set(COLUMNS) == set(Operation)
    assert all(len(row.split()) == len(COLUMNS) for row in (*TABLE.values(), OWN_NODE))


@pytest.mark.parametrize(("role", "operation", "scope"), [*product(TABLE, COLUMNS, SCOPES)])
def test_role_allows_its_operations_only_within_its_scope(
    role: Role | None, operation: Operation, scope: str
) -> None:
    grants = [RoleGrant(role=role, scope=scope, principal=ME, tenant_id=TENANT)] if role else []
    assert allowed(Roles(grants), operation) is (SCOPES[scope] and expected(TABLE[role], operation))


@pytest.mark.parametrize("operation", COLUMNS)
@pytest.mark.parametrize("principal", [ME, ME.upper(), MY_APPLICATION, MY_GROUP, SOMEBODY])
def test_role_grant_matches_object_id_application_id_or_group(principal: str, operation: Operation) -> None:
    roles = Roles([RoleGrant(role=Role.OWNER, scope="/", principal=principal, tenant_id=TENANT)])
    assert allowed(roles, operation) is (principal != SOMEBODY and expected(TABLE[Role.OWNER], operation))


@pytest.mark.parametrize("operation", COLUMNS)
@pytest.mark.parametrize("tenant", ["99999999-0000-4000-8000-00000000000a", None])
def test_grant_of_another_tenant_gives_nothing(tenant: str | None, operation: Operation) -> None:
    """An application has the same ID in every tenant: its owner in one tenant uses the grant of another."""
    for principal in (ME, MY_APPLICATION, MY_GROUP):
        roles = Roles([RoleGrant(role=Role.OWNER, scope="/", principal=principal, tenant_id=tenant)])
        assert not allowed(roles, operation)


@pytest.mark.parametrize("operation", COLUMNS)
def test_admin_key_allows_every_operation_of_an_owner(operation: Operation) -> None:
    assert allowed(Roles([]), operation, ADMIN_CALLER) is expected(TABLE[Role.OWNER], operation)


@pytest.mark.parametrize("operation", COLUMNS)
def test_node_key_allows_nothing_by_roles(operation: Operation) -> None:
    """The authorizer decides as which node a key may act. No grant counts for a key, whatever its IDs are."""
    key = Caller(ME, "node edge-1", CallerKind.NODE_KEY, TENANT, OWN, OWN, node=(CLUSTER.key, "edge-1"))
    grants = [RoleGrant(role=Role.OWNER, scope="/", principal=ME, tenant_id=TENANT)]
    assert not allowed(Roles(grants), operation, key, ME)


@pytest.mark.parametrize("operation", COLUMNS)
@pytest.mark.parametrize(
    ("identity", "own"),
    [
        (ME, True),
        (MY_APPLICATION, True),
        (f"{MY_APPLICATION}@{TENANT}", True),
        (f"{MY_APPLICATION}@{SOMEBODY}", False),  # the same application in another tenant
        (MY_GROUP, False),  # a group with other members
        (SOMEBODY, False),
        ("", False),
        (f"@{TENANT}", False),
    ],
)
def test_node_identity_allows_node_operations_only_on_its_own_node(
    identity: str, own: bool, operation: Operation
) -> None:
    assert allowed(Roles([]), operation, node_identity=identity) is (own and expected(OWN_NODE, operation))


@pytest.mark.parametrize("operation", COLUMNS)
def test_permissions_of_role_and_node_identity_are_combined(operation: Operation) -> None:
    """A node whose identity is also a reader has the permissions of both."""
    roles = Roles([RoleGrant(role=Role.READER, scope=str(CLUSTER), principal=ME, tenant_id=TENANT)])
    both = expected(TABLE[Role.READER], operation) or expected(OWN_NODE, operation)
    assert allowed(roles, operation, node_identity=ME) is both


@pytest.mark.parametrize("operation", COLUMNS)
def test_caller_without_ids_is_denied_every_operation(operation: Operation) -> None:
    assert not allowed(Roles([]), operation, Caller("x", "x", CallerKind.USER), node_identity="")
