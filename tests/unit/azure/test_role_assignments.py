"""Tests of role assignments: deterministic names, and permissions with Azure's semantics."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.azure.arm import ArmClient, ArmReply, AzureCallError, refused_error
from aks_flex_node.azure.role_assignments import assign, assignment_id, missing_roles
from aks_flex_node.azure.roles import CLUSTER_ADMIN, RBAC_CLUSTER_ADMIN, READER
from aks_flex_node.retry import RetryDeadline

CLUSTER = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c"
RBAC, ADMIN = RBAC_CLUSTER_ADMIN, CLUSTER_ADMIN
ROLES = (READER, RBAC, ADMIN)


class Answers(ArmClient):
    """ARM with one response for all requests."""

    def __init__(self, found: list[dict[str, Any]] | AzureCallError) -> None:
        self._found = found

    def _answer(self) -> list[dict[str, Any]]:
        if isinstance(self._found, AzureCallError):
            raise self._found
        return self._found

    def send(self, *_: Any, **__: Any) -> ArmReply:
        return ArmReply(200, self._answer())

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:  # noqa: ARG002
        assert path == f"{CLUSTER}/providers/Microsoft.Authorization/permissions"
        return self._answer()


def test_role_assignment_name_is_deterministic_and_ignores_case() -> None:
    one = assignment_id(CLUSTER, READER, "principal")
    assert one.rpartition("/")[2] == assignment_id(CLUSTER.upper(), READER, "PRINCIPAL").rpartition("/")[2]
    others = [assignment_id(CLUSTER, ADMIN, "principal"), assignment_id(CLUSTER, READER, "another")]
    assert len({one, *others}) == 3


@pytest.mark.parametrize(
    ("permissions", "lacking"),
    [
        ([], [READER, RBAC, ADMIN]),
        ([{"actions": ["*/read"]}], [RBAC, ADMIN]),
        ([{"actions": ["*"], "notActions": ["Microsoft.Authorization/*/write"]}], [RBAC]),
        ([{"actions": ["*"], "dataActions": ["*"]}], []),
        ([{"actions": ["*"], "notActions": ["Microsoft.ContainerService/*"], "dataActions": ["*"]}], [READER, ADMIN]),
        ([{"actions": ["*"], "dataActions": ["*"], "notDataActions": ["*/write"]}], [RBAC]),
        # One role can grant what another excludes.
        ([{"actions": ["*"], "notActions": ["*"]}, {"actions": ["*/READ"]}], [RBAC, ADMIN]),
    ],
)
def test_missing_roles_are_derived_from_permissions(permissions: list[dict[str, Any]], lacking: list[Any]) -> None:
    assert missing_roles(Answers(permissions), CLUSTER, ROLES) == lacking


def test_all_roles_are_missing_when_permissions_query_is_forbidden() -> None:
    assert missing_roles(Answers(refused_error(403, "")), CLUSTER, ROLES) == [READER, RBAC, ADMIN]
    with pytest.raises(AzureCallError):
        missing_roles(Answers(refused_error(500, "")), CLUSTER, ROLES)


def test_deletion_ignores_missing_assignment() -> None:
    Answers(refused_error(404, "")).delete("/x", "1")
    with pytest.raises(AzureCallError):
        Answers(refused_error(403, "")).delete("/x", "1")


def test_retry_delays_grow_until_deadline() -> None:
    time, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time[0] += seconds

    patience = RetryDeadline(40.0, now=lambda: time[0], sleep=sleep)
    while patience.pause():
        pass
    assert slept == [1, 2, 4, 8, 15, 10]
    assert patience.waited == 40.0


class Busy(Answers):
    """ARM that throttles the first request."""

    def put(self, path: str, api_version: str, body: Any) -> dict[str, Any]:  # noqa: ARG002
        if self._found:
            self._found = []
            raise refused_error(429, '{"error": {"code": "TooManyRequests", "message": "Slowly."}}')
        return {}


def test_throttled_role_assignment_reports_reason_while_retrying() -> None:
    notes: list[str] = []
    patience = RetryDeadline(40.0, now=lambda: 0.0, sleep=lambda _: None)
    assert assign(Busy([{}]), CLUSTER, READER, "principal", patience, notes.append)
    assert notes == ["Azure rejected the request (TooManyRequests): Slowly (0 s)"]
