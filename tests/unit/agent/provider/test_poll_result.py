"""Tests of poll results, especially of responses that do not mean that the node was deleted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.provider.poll_result import NextConfig, ProviderState, classify
from aks_flex_node.agent.provider.provider_client import ProviderClient, ProviderRequest, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from tests.unit.agent.builders import config_of
from tests.unit.agent.config.builders import CLUSTER_ID

if TYPE_CHECKING:
    from collections.abc import Mapping


def error(code: str, message: str = "No.") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def resource(**properties: Any) -> bytes:
    return json.dumps({"name": "edge-1", "properties": properties}).encode()


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


@pytest.mark.parametrize(
    ("status", "body", "standing"),
    [
        (404, b"<html>404 Not Found</html>", ProviderState.UNEXPECTED_RESPONSE),
        (404, b"", ProviderState.UNEXPECTED_RESPONSE),
        (404, b'{"detail":"Not Found"}', ProviderState.UNEXPECTED_RESPONSE),
        (500, b"<html>Oops</html>", ProviderState.UNEXPECTED_RESPONSE),
        (502, b"<html>Bad Gateway</html>", ProviderState.UNEXPECTED_RESPONSE),
        (404, b'{"error": "ResourceNotFound"}', ProviderState.UNEXPECTED_RESPONSE),
        (404, b'{"code": "ResourceNotFound"}', ProviderState.UNEXPECTED_RESPONSE),
        (404, error("ParentResourceNotFound"), ProviderState.NO_CLUSTER),
        (404, error("ResourceGroupNotFound"), ProviderState.NO_CLUSTER),
        (404, error("NotFound"), ProviderState.FAILING),
        (404, error("NodeNotKnown"), ProviderState.NODE_NOT_KNOWN),
        (404, error("ResourceNotFound"), ProviderState.DELETED),
        (403, error("ResourceNotFound"), ProviderState.FORBIDDEN),
        (410, error("ResourceNotFound"), ProviderState.FAILING),
        (500, error("ResourceNotFound"), ProviderState.FAILING),
        (409, error("NodeReplaced"), ProviderState.REPLACED),
        (403, error("NodeReplaced"), ProviderState.FORBIDDEN),
        (409, error("NodeOnAnotherMachine"), ProviderState.ON_ANOTHER_MACHINE),
        (409, error("Conflict"), ProviderState.FAILING),
        (302, b"", ProviderState.UNEXPECTED_RESPONSE),
    ],
)
def test_only_the_provider_can_say_that_a_node_was_deleted_or_replaced(
    status: int, body: bytes, standing: ProviderState
) -> None:
    assert classify(status, {}, body).state is standing


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


def test_name_of_the_state_is_not_repeated_in_its_message() -> None:
    revoked = classify(403, {}, b'{"error": {"code": "NodeKeyRevoked", "message": "The key was revoked."}}')
    assert (revoked.state, revoked.message) == (ProviderState.KEY_REVOKED, "The key was revoked. (status 403)")
    other = classify(403, {}, b'{"error": {"code": "AuthorizationFailed", "message": "No."}}')
    assert other.message == "AuthorizationFailed: No. (status 403)"


NEXT = {"poolRevision": 5, "config": {"node": {"maxPods": 60}}}
NOW = {"configVersion": "7", "config": {"node": {"maxPods": 50}}}


def test_next_config_is_read_beside_the_config() -> None:
    verdict = classify(200, {"ETag": '"7.5"'}, resource(**NOW, nextConfig=NEXT))
    assert verdict.next_config == NextConfig(5, {"node": {"maxPods": 60}})
    assert (verdict.version, verdict.etag, verdict.knows_next, verdict.next_problem) == ("7", '"7.5"', True, "")


def test_fields_of_a_provider_one_version_newer_are_ignored() -> None:
    next_config = {**NEXT, "fieldOfNextVersion": 1}
    newer = classify(200, {}, resource(**NOW, nextConfig=next_config, fieldOfNextVersion={"a": []}))
    assert newer == classify(200, {}, resource(**NOW, nextConfig=NEXT))


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "5",
        0,
        {},
        {"poolRevision": 5},
        {"poolRevision": 5, "config": {}},
        {"poolRevision": 5, "config": []},
        *({"poolRevision": revision, "config": {"node": {}}} for revision in (True, "5", 5.0, 0, -1, 1 << 40)),
    ],
)
def test_malformed_next_config_is_ignored_with_a_reason(wrong: Any) -> None:
    verdict = classify(200, {}, resource(**NOW, nextConfig=wrong))
    assert verdict.is_ok
    assert verdict.version == "7"
    assert verdict.next_config is None
    assert "`nextConfig" in verdict.next_problem


@pytest.mark.parametrize("etag", ["7", 'W/"7"', '"7\r\nX: y"', '""', '"a" , "b"', f'"{"7" * 300}"'])
def test_unusual_etag_is_not_sent_back(etag: str) -> None:
    assert classify(200, {"ETag": etag}, resource(**NOW)).etag == ""


@dataclass
class ScriptedProvider(ProviderClient):
    """A client whose provider gives predefined responses, and records the headers of the polls."""

    responses: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    sent: list[Mapping[str, str]] = field(default_factory=list)

    def _request(self, request: ProviderRequest) -> tuple[int, dict[str, str], bytes]:
        self.sent.append(request.headers)
        return self.responses.pop(0)


def scripted(*responses: tuple[int, dict[str, str], bytes]) -> ScriptedProvider:
    config = config_of({"azure.targetCluster.resourceId": CLUSTER_ID})
    endpoint = provider_endpoint(config, "edge-1")
    return ScriptedProvider(endpoint, config, ProviderTokens("agent", str), responses=list(responses))


def test_another_next_config_of_the_same_version_is_no_new_config() -> None:
    other = {**NEXT, "poolRevision": 6}
    client = scripted(
        (200, {"ETag": '"7.5"'}, resource(**NOW, nextConfig=NEXT)),
        (200, {"ETag": '"7.6"'}, resource(**NOW, nextConfig=other)),
        (304, {}, b""),
    )
    first, second, third = (client.poll("7", 50) for _ in range(3))
    assert (first.changed, second.changed, third.changed) == (False, False, False)
    assert [each["If-None-Match"] for each in client.sent] == ['"7"', '"7.5"', '"7.6"']
    assert {each["Prefer"] for each in client.sent} == {"wait=50"}
    assert second.next_config
    assert second.next_config.pool_revision == 6
    assert not third.knows_next  # it is still the one of the second answer


def test_answer_without_news_to_the_plain_version_means_no_next_config() -> None:
    verdict = scripted((304, {}, b"")).poll("7", 0)
    assert (verdict.knows_next, verdict.next_config) == (True, None)


def test_new_version_is_a_new_config_with_or_without_a_next_one() -> None:
    later = resource(configVersion="8", config={"node": {"maxPods": 60}})
    client = scripted((200, {"ETag": '"7.5"'}, resource(**NOW, nextConfig=NEXT)), (200, {"ETag": '"8"'}, later))
    client.poll("7", 0)
    verdict = client.poll("7", 0)
    assert (verdict.changed, verdict.version, verdict.next_config) == (True, "8", None)


def test_failed_poll_says_nothing_about_the_next_config() -> None:
    assert not scripted((503, {}, error("ServerBusy"))).poll("7", 0).knows_next
