"""Tests of errors of Entra ID and ARM as one sentence with code, correlation ID and remedy."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from aks_flex_node.azure import error_messages
from aks_flex_node.azure.arm import refused_error, sign_in_failed_error

CORRELATION = "6f5bb2c0-8b1b-4f0e-9d6a-2f43b2a1b111"
TAIL = f"Trace ID: 11111111-2222-3333-4444-555555555555 Correlation ID: {CORRELATION} Timestamp: 2026-01-01 00:00:00Z"
CLUSTER = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c"


def forbidden(action: str, scope: str = CLUSTER) -> str:
    return (
        "The client 'app' with object id 'oid-1' does not have authorization to perform action "
        f"'{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please refresh."
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (7000215, "not its ID"),
        (7000222, "has expired"),
        (7000112, "disabled"),
        (700016, "client ID"),
        (90002, "tenant ID"),
        (700027, "Add this certificate"),
        (700024, "clock"),
        (700213, "federated credential"),
        (53003, "conditional access"),
        (1, "Check the tenant, the client ID"),
    ],
)
def test_aadsts_code_selects_the_hint(number: int, words: str) -> None:
    error = sign_in_failed_error(f"Authentication failed: AADSTS{number}: No, because. {TAIL}")
    assert error.message == (f"Entra ID issued no token: AADSTS{number}: No, because (correlation ID {CORRELATION}).")
    assert error.code == f"AADSTS{number}"
    assert words in error.hint


def test_unknown_tenant_error_from_library_gets_aadsts_code() -> None:
    said = (
        "Unable to get authority configuration for https://x/t. Authority would typically be in a format of "
        "https://x/y. Also please double check your tenant name or GUID is correct."
    )
    assert error_messages.parse_sign_in_error(said).code == "AADSTS90002"
    assert "the tenant was not found" in error_messages.parse_sign_in_error(said).sentence()


@pytest.mark.parametrize("said", ["", "\n", "  "])
def test_empty_sign_in_error_reports_that_no_reason_was_given(said: str) -> None:
    assert error_messages.parse_sign_in_error(said).sentence() == "Entra ID issued no token: no message."


@pytest.mark.parametrize(
    ("action", "role"),
    [
        (
            "Microsoft.ContainerService/managedClusters/listClusterAdminCredential/action",
            "Azure Kubernetes Service Cluster Admin Role",
        ),
        ("Microsoft.ContainerService/managedClusters/read", "Reader"),
        (
            "Microsoft.ContainerService/managedClusters/flexNodeConfig/write",
            "Azure Kubernetes Service Contributor Role",
        ),
        ("Microsoft.Authorization/roleAssignments/write", "User Access Administrator"),
        ("Microsoft.HybridCompute/machines/write", "Azure Connected Machine Onboarding"),
        ("Microsoft.HybridCompute/machines/delete", "Azure Connected Machine Resource Administrator"),
        ("Microsoft.Network/virtualNetworkGateways/write", "Network Contributor"),
        ("Microsoft.Other/things/write", "Contributor"),
    ],
)
def test_authorization_failure_names_role_scope_and_assignee(action: str, role: str) -> None:
    text = json.dumps({"error": {"code": "AuthorizationFailed", "message": forbidden(action)}})
    error = refused_error(403, text, {"x-ms-correlation-request-id": CORRELATION})
    assert action in error.message
    assert f"(correlation ID {CORRELATION})." in error.message
    assert f"role {role} at {CLUSTER}" in error.hint
    assert "--assignee-object-id oid-1 --assignee-principal-type ServicePrincipal " in error.hint
    assert f'--role "{role}" --scope {CLUSTER}`' in error.hint


def test_unparsed_forbidden_error_still_hints_at_role_assignment() -> None:
    assert error_messages.parse_forbidden("No.") is None
    assert "az role assignment create" in refused_error(403, '{"error": {"code": "X", "message": "No."}}').hint


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("90", "10:01:30 UTC"),
        ("0", "10:00:00 UTC"),
        ("Thu, 01 Jan 2026 11:22:33 GMT", "11:22:33 UTC"),
        ("", ""),
        ("soon", ""),
        ("1e999", ""),
    ],
)
def test_retry_after_is_converted_to_time_of_day(header: str, told: str) -> None:
    assert error_messages.retry_time(header, datetime(2026, 1, 1, 10, tzinfo=timezone.utc)) == told


def test_throttling_error_hints_when_to_retry() -> None:
    assert "Run the same command again after" in refused_error(429, "{}", {"retry-after": "30"}).hint
    assert "in a minute" in refused_error(429, "{}").hint


def test_request_id_is_shown_when_correlation_id_is_missing() -> None:
    assert refused_error(500, "", {"x-ms-request-id": "r-1"}).message.endswith("(correlation ID r-1).")


@pytest.mark.parametrize(("client", "kind"), [("edge@example.com", "User"), ("33333333-0000", "ServicePrincipal")])
def test_role_assignment_command_names_the_type_of_the_identity(client: str, kind: str) -> None:
    message = (
        f"The client '{client}' with object id '1-2' does not have authorization to perform action "
        "'Microsoft.ContainerService/managedClusters/listBootstrapData/action' over scope '/subscriptions/a b'."
    )
    missing = error_messages.parse_forbidden(message)
    assert missing
    assert f"--assignee-object-id 1-2 --assignee-principal-type {kind} --role" in missing.remedy
    assert "--scope '/subscriptions/a b'" in missing.remedy
