"""Tests of role grants: scopes, principals and tenants."""

from __future__ import annotations

import asyncio

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


OF_A_NODE = {
    Operation.READ,
    Operation.REGENERATE_TOKEN,
    Operation.REPORT_STATUS,
    Operation.LIST_CREDENTIALS,
    Operation.ROTATE_KEY,
}
OF_AN_OWNER = set(Operation) - {Operation.ROTATE_KEY}


def allowed(roles: Roles, caller: Caller = CALLER, node_identity: str = "") -> set[Operation]:
    """Returns the operations that a caller may do, by either method."""
    found = set()
    for operation in Operation:
        later = asyncio.run(roles.allows(caller, operation, CLUSTER, node_identity))
        assert roles.allows_now(caller, operation, CLUSTER, node_identity) is later
        found |= {operation} if later else set()
    return found


def owner(principal: str, tenant: str | None = TENANT) -> Roles:
    return Roles([RoleGrant(role=Role.OWNER, scope="/", principal=principal, tenant_id=tenant)])


@pytest.mark.parametrize("scope", SCOPES)
def test_role_allows_its_operations_only_within_its_scope(scope: str) -> None:
    """The operations of each role are tested over HTTP, in tests/service/rp/api/test_authorization.py."""
    grant = RoleGrant(role=Role.OWNER, scope=scope, principal=ME, tenant_id=TENANT)
    assert allowed(Roles([grant])) == (OF_AN_OWNER if SCOPES[scope] else set())


def test_role_grant_matches_object_id_application_id_or_group() -> None:
    for principal in (ME, ME.upper(), MY_APPLICATION, MY_GROUP):
        assert allowed(owner(principal)) == OF_AN_OWNER
    assert allowed(owner(SOMEBODY)) == set()


@pytest.mark.parametrize("tenant", ["99999999-0000-4000-8000-00000000000a", None])
def test_grant_of_another_tenant_gives_nothing(tenant: str | None) -> None:
    """An application has the same ID in every tenant: its owner in one tenant uses the grant of another."""
    for principal in (ME, MY_APPLICATION, MY_GROUP):
        assert allowed(owner(principal, tenant)) == set()


def test_admin_key_allows_every_operation_of_an_owner() -> None:
    assert allowed(Roles([]), ADMIN_CALLER) == OF_AN_OWNER


def test_node_key_allows_nothing_by_roles() -> None:
    """The authorizer decides as which node a key may act. No grant counts for a key, whatever its IDs are."""
    key = Caller(ME, "node edge-1", CallerKind.NODE_KEY, TENANT, OWN, OWN, node=(CLUSTER.key, "edge-1"))
    assert allowed(owner(ME), key, ME) == set()


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
def test_node_identity_allows_node_operations_only_on_its_own_node(identity: str, own: bool) -> None:
    assert allowed(Roles([]), node_identity=identity) == (OF_A_NODE if own else set())


def test_permissions_of_role_and_node_identity_are_combined() -> None:
    """A node whose identity is also a reader has the permissions of both."""
    roles = Roles([RoleGrant(role=Role.READER, scope=str(CLUSTER), principal=ME, tenant_id=TENANT)])
    assert allowed(roles, node_identity=ME) == allowed(roles) | OF_A_NODE


def test_caller_without_ids_is_denied_every_operation() -> None:
    assert allowed(Roles([]), Caller("x", "x", CallerKind.USER)) == set()
