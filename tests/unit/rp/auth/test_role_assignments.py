"""Tests of Azure role assignments: relevant roles, cache, and behavior while Azure is unavailable."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node.errors import FlexError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.roles import AzureAssignments, Operation, Roles, effective_roles
from aks_flex_rp.callers import Caller, CallerKind

SUBSCRIPTION = "11111111-0000-4000-8000-00000000000a"
CLUSTER = ClusterId(SUBSCRIPTION, "edge", "plant")
SIBLING = ClusterId(SUBSCRIPTION, "edge", "plant2")
CALLER = Caller("oid-1", "me", CallerKind.USER, "home", ids=frozenset({"oid-1"}))
OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
AKS_CONTRIBUTOR = "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"


def assigned(definition: str, scope: str) -> dict[str, Any]:
    role = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{definition}"
    return {"properties": {"roleDefinitionId": role, "scope": scope, "principalId": "oid-1"}}


class Azure:
    """Returns predefined role assignments and counts requests."""

    def __init__(self, *assignments: dict[str, Any]) -> None:
        self.assignments = [*assignments]
        self.away = False
        self.now = 1000.0
        self.asked: list[tuple[str, dict[str, str]]] = []

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:
        self.asked.append((f"{path}?{api_version}", query))
        if self.away:
            raise FlexError("arm-unreachable", "Azure cannot be reached.")
        return [*self.assignments]

    def roles(self) -> Roles:
        return Roles([], AzureAssignments(self, "home", lambda: self.now))


@pytest.mark.parametrize(
    ("definition", "scope", "roles"),
    [
        (OWNER, "/", {"owner"}),
        (OWNER.upper(), str(CLUSTER).upper(), {"owner"}),
        (CONTRIBUTOR, f"/subscriptions/{SUBSCRIPTION}", {"contributor"}),
        (AKS_CONTRIBUTOR, f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Edge", {"contributor"}),
        (READER, "/providers/Microsoft.Management/managementGroups/all", {"reader"}),
        (OWNER, f"{CLUSTER}/flexNodeConfig/edge-1", set()),
        (OWNER, f"{CLUSTER}2", set()),
        (OWNER, f"/subscriptions/{SUBSCRIPTION}/resourceGroups/edge2", set()),
        (OWNER, "", set()),
        ("00000000-0000-0000-0000-000000000000", "/", set()),
    ],
)
def test_built_in_roles_apply_at_cluster_scope_and_above(definition: str, scope: str, roles: set[str]) -> None:
    assert effective_roles([assigned(definition, scope)], CLUSTER) == roles


def test_assignment_with_a_condition_gives_no_role(caplog: pytest.LogCaptureFixture) -> None:
    """Azure lets its holder do less than the role says; here it would have all of it."""
    limited = assigned(OWNER, str(CLUSTER))
    limited["id"] = "/assignments/1"
    limited["properties"]["condition"] = "@Resource[Microsoft.Storage/x:name] StringEquals 'a'"
    assert effective_roles([limited, assigned(READER, str(CLUSTER))], CLUSTER) == {"reader"}
    assert "The role assignment /assignments/1 has a condition, and gives no role here." in caplog.text


def test_assignments_are_not_read_for_callers_of_other_tenants() -> None:
    azure = Azure(assigned(OWNER, str(CLUSTER)))
    roles = Roles([], AzureAssignments(azure, "Home", lambda: azure.now))
    assert asyncio.run(roles.allows(CALLER, Operation.WRITE, CLUSTER))
    for tenant in ("other", ""):
        assert not asyncio.run(roles.allows(replace(CALLER, tenant=tenant), Operation.READ, CLUSTER))
    assert len(azure.asked) == 1


def test_concurrent_checks_share_one_role_assignment_request() -> None:
    azure = Azure(assigned(READER, "/"))
    roles = azure.roles()

    async def crowd() -> list[bool]:
        return await asyncio.gather(*(roles.allows(CALLER, Operation.READ, CLUSTER) for _ in range(20)))

    assert asyncio.run(crowd()) == [True] * 20
    assert len(azure.asked) == 1
    azure.now += 301
    azure.assignments.clear()
    assert asyncio.run(crowd()) == [False] * 20


async def test_cached_role_assignments_are_used_for_an_hour_if_azure_is_down() -> None:
    azure = Azure(assigned(OWNER, "/"))
    roles = azure.roles()

    assert await roles.allows(CALLER, Operation.WRITE, CLUSTER)
    azure.away = True
    for _ in range(11):
        azure.now += 310
        assert await roles.allows(CALLER, Operation.WRITE, CLUSTER)
    azure.now += 310
    assert not await roles.allows(CALLER, Operation.WRITE, CLUSTER)
    azure.away = False
    azure.now += 20
    assert await roles.allows(CALLER, Operation.WRITE, CLUSTER)


async def test_callers_are_denied_and_requests_limited_if_azure_is_unreachable() -> None:
    azure = Azure(assigned(OWNER, "/"))
    azure.away = True
    roles = azure.roles()

    for _ in range(100):
        assert not await roles.allows(CALLER, Operation.READ, CLUSTER)
        azure.now += 0.1
    assert len(azure.asked) == 1
