"""Tests of the authorization matrix: every role, operation and scope."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.auth.auth_settings import Role, RoleGrant
from aks_flex_rp.auth.roles import Operation, Roles
from aks_flex_rp.callers import Caller, CallerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def expected(row: str) -> dict[Operation, bool]:
    return {operation: cell == "yes" for operation, cell in zip(COLUMNS, row.split(), strict=True)}


NOTHING = dict.fromkeys(COLUMNS, False)


def wrong_cells(
    case: str, roles: Roles, table: dict[Operation, bool], caller: Caller = CALLER, node_identity: str = ""
) -> Iterable[str]:
    """Yields the operations that are not allowed or denied as in the table, by either method."""
    for operation, is_allowed in table.items():
        now = roles.allows_now(caller, operation, CLUSTER, node_identity)
        later = asyncio.run(roles.allows(caller, operation, CLUSTER, node_identity))
        if now is not is_allowed or later is not is_allowed:
            yield f"{case}: {operation.name} is {now} now and {later} with a request, not {is_allowed}"


def check(wrong: Iterable[str]) -> None:
    assert not (lines := list(wrong)), "\n".join(lines)


def owner(principal: str, tenant: str | None = TENANT) -> Roles:
    return Roles([RoleGrant(role=Role.OWNER, scope="/", principal=principal, tenant_id=tenant)])


def test_role_table_covers_every_operation() -> None:
    assert set(COLUMNS) == set(Operation)


@pytest.mark.parametrize("role", TABLE)
def test_role_allows_its_operations_only_within_its_scope(role: Role | None) -> None:
    for scope, includes_cluster in SCOPES.items():
        grants = [RoleGrant(role=role, scope=scope, principal=ME, tenant_id=TENANT)] if role else []
        table = expected(TABLE[role]) if includes_cluster else NOTHING
        check(wrong_cells(f"{role} of {scope}", Roles(grants), table))


def test_role_grant_matches_object_id_application_id_or_group() -> None:
    for principal in (ME, ME.upper(), MY_APPLICATION, MY_GROUP):
        check(wrong_cells(principal, owner(principal), expected(TABLE[Role.OWNER])))
    check(wrong_cells("another principal", owner(SOMEBODY), NOTHING))


@pytest.mark.parametrize("tenant", ["99999999-0000-4000-8000-00000000000a", None])
def test_grant_of_another_tenant_gives_nothing(tenant: str | None) -> None:
    """An application has the same ID in every tenant: its owner in one tenant uses the grant of another."""
    for principal in (ME, MY_APPLICATION, MY_GROUP):
        check(wrong_cells(principal, owner(principal, tenant), NOTHING))


def test_admin_key_allows_every_operation_of_an_owner() -> None:
    check(wrong_cells("admin key", Roles([]), expected(TABLE[Role.OWNER]), ADMIN_CALLER))


def test_node_key_allows_nothing_by_roles() -> None:
    """The authorizer decides as which node a key may act. No grant counts for a key, whatever its IDs are."""
    key = Caller(ME, "node edge-1", CallerKind.NODE_KEY, TENANT, OWN, OWN, node=(CLUSTER.key, "edge-1"))
    check(wrong_cells("node key", owner(ME), NOTHING, key, ME))


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
    table = expected(OWN_NODE) if own else NOTHING
    check(wrong_cells(identity, Roles([]), table, node_identity=identity))


def test_permissions_of_role_and_node_identity_are_combined() -> None:
    """A node whose identity is also a reader has the permissions of both."""
    roles = Roles([RoleGrant(role=Role.READER, scope=str(CLUSTER), principal=ME, tenant_id=TENANT)])
    reader, node = expected(TABLE[Role.READER]), expected(OWN_NODE)
    both = {operation: reader[operation] or node[operation] for operation in COLUMNS}
    check(wrong_cells("a reader's node", roles, both, node_identity=ME))


def test_caller_without_ids_is_denied_every_operation() -> None:
    check(wrong_cells("no IDs", Roles([]), NOTHING, Caller("x", "x", CallerKind.USER)))
