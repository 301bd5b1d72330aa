"""Tests of poll results, especially of responses that do not mean that the node was deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.provider.poll_result import ProviderState, classify


def error(code: str, message: str = "No.") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def resource(**properties: Any) -> bytes:
    return json.dumps({"name": "edge-1", "properties": properties}).encode()


def test_not_modified_response_is_ok_and_unchanged() -> None:
    verdict = classify(304, {}, b"")
    assert verdict.is_ok
    assert not verdict.changed


def test_changed_response_contains_version_and_config() -> None:
    verdict = classify(200, {}, resource(configVersion="1708127056", config={"node": {"maxPods": 50}}))
    assert verdict.is_ok
    assert verdict.changed
    assert (verdict.version, verdict.config) == ("1708127056", {"node": {"maxPods": 50}})


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please sign in to the hotel</html>",
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"name": "edge-1"}',
        resource(configVersion="soon", config={"node": {}}),
        resource(configVersion="1708127056"),
        resource(configVersion="1708127056", config={}),
        resource(configVersion="١٢", config={"node": {}}),
    ],
)
def test_unexpected_response_body_is_not_the_provider(body: bytes) -> None:
    verdict = classify(200, {}, body)
    assert verdict.state is ProviderState.UNEXPECTED_RESPONSE
    assert not verdict.changed


def test_resource_not_found_error_means_deleted() -> None:
    assert classify(404, {}, error("ResourceNotFound")).state is ProviderState.DELETED


@pytest.mark.parametrize(
    ("status", "body", "standing"),
    [
        (404, b"<html>404 Not Found</html>", ProviderState.UNEXPECTED_RESPONSE),
        (404, b"", ProviderState.UNEXPECTED_RESPONSE),
        (404, b'{"error": "ResourceNotFound"}', ProviderState.UNEXPECTED_RESPONSE),
        (404, b'{"code": "ResourceNotFound"}', ProviderState.UNEXPECTED_RESPONSE),
        (404, error("ParentResourceNotFound"), ProviderState.NO_CLUSTER),
        (404, error("ResourceGroupNotFound"), ProviderState.NO_CLUSTER),
        (404, error("NotFound"), ProviderState.FAILING),
        (404, error("NodeNotKnown"), ProviderState.NODE_NOT_KNOWN),
        (403, error("ResourceNotFound"), ProviderState.FORBIDDEN),
        (410, error("ResourceNotFound"), ProviderState.FAILING),
        (500, error("ResourceNotFound"), ProviderState.FAILING),
    ],
)
def test_other_error_responses_do_not_mean_deleted(status: int, body: bytes, standing: ProviderState) -> None:
    assert classify(status, {}, body).state is standing


@pytest.mark.parametrize(
    ("status", "code", "state"),
    [
        (409, "NodeReplaced", ProviderState.REPLACED),
        (409, "NodeOnAnotherMachine", ProviderState.ON_ANOTHER_MACHINE),
        (409, "Conflict", ProviderState.FAILING),
        (403, "NodeReplaced", ProviderState.FORBIDDEN),
    ],
)
def test_only_the_provider_can_say_that_a_machine_was_replaced(status: int, code: str, state: ProviderState) -> None:
    assert classify(status, {}, error(code)).state is state


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        (401, ProviderState.FORBIDDEN),
        (403, ProviderState.FORBIDDEN),
        (429, ProviderState.THROTTLED),
        (408, ProviderState.FAILING),
        (500, ProviderState.FAILING),
        (503, ProviderState.FAILING),
        (400, ProviderState.FAILING),
    ],
)
def test_error_statuses_map_to_distinct_provider_states(status: int, standing: ProviderState) -> None:
    verdict = classify(status, {"Retry-After": "7"}, error("SomeCode", "In these words."))
    assert (verdict.state, verdict.retry_after) == (standing, 7.0)
    assert "SomeCode: In these words." in verdict.message


def test_redirect_response_is_not_the_provider() -> None:
    assert classify(302, {"Location": "http://portal.example"}, b"").state is ProviderState.UNEXPECTED_RESPONSE


def test_name_of_the_state_is_not_repeated_in_its_message() -> None:
    revoked = classify(403, {}, b'{"error": {"code": "NodeKeyRevoked", "message": "The key was revoked."}}')
    assert (revoked.state, revoked.message) == (ProviderState.KEY_REVOKED, "The key was revoked. (status 403)")
    other = classify(403, {}, b'{"error": {"code": "AuthorizationFailed", "message": "No."}}')
    assert other.message == "AuthorizationFailed: No. (status 403)"
