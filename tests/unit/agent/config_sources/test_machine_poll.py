"""Tests of the classification of Azure Resource Manager's responses to polls of a Machine."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.aks_pool.pool_ids import parse_pool_id
from aks_flex_node.agent.config_sources.machine_poll import classify_failure, explain_no_answer
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState

POOL = parse_pool_id(
    "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/edge/providers/Microsoft.ContainerService"
    "/managedClusters/plant/agentPools/edge"
)


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "In these words."}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "state", "remedy"),
    [
        (429, error("TooManyRequests"), ProviderState.THROTTLED, "tries again by itself"),
        (503, error("ServiceUnavailable"), ProviderState.FAILING, "tries again by itself"),
        (404, error("NotFound"), ProviderState.NO_CLUSTER, "Check that the cluster and the pool"),
        (401, error("InvalidAuthenticationTokenTenant"), ProviderState.FORBIDDEN, "set `azure.tenantId`"),
        (404, b"<html>Not found.</html>", ProviderState.UNEXPECTED_RESPONSE, "Check `azure.resourceManager`"),
    ],
)
def test_every_failure_tells_what_to_do(status: int, body: bytes, state: ProviderState, remedy: str) -> None:
    result = classify_failure(status, {}, body, POOL)
    assert (result.state, remedy in result.message) == (state, True), result


def test_missing_response_tells_what_to_check() -> None:
    away = PollResult(ProviderState.UNREACHABLE, "Azure Resource Manager unreachable: no route.")
    assert explain_no_answer(away).message == (
        "Azure Resource Manager unreachable: no route. Check the network, the DNS and the proxy of this machine. "
        "The agent tries again by itself."
    )
    refused = PollResult(ProviderState.SIGN_IN_FAILED, "The secret has expired. Write a new one.")
    assert explain_no_answer(refused) == refused
