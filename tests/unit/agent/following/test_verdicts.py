"""What an answer means; above all, what does not mean that the node was deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.following.verdicts import Standing, judge


def error(code: str, message: str = "No.") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def resource(**properties: Any) -> bytes:
    return json.dumps({"name": "edge-1", "properties": properties}).encode()


def test_nothing_new_is_nothing_new() -> None:
    verdict = judge(304, {}, b"")
    assert verdict.good
    assert not verdict.changed


def test_news_have_a_version_and_a_configuration() -> None:
    verdict = judge(200, {}, resource(configVersion="1708127056", config={"node": {"maxPods": 50}}))
    assert verdict.good
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
def test_whoever_answers_something_else_is_not_the_provider(body: bytes) -> None:
    verdict = judge(200, {}, body)
    assert verdict.standing is Standing.NOT_THE_PROVIDER
    assert not verdict.changed


def test_only_one_answer_says_that_the_node_was_deleted() -> None:
    assert judge(404, {}, error("ResourceNotFound")).standing is Standing.DELETED


@pytest.mark.parametrize(
    ("status", "body", "standing"),
    [
        (404, b"<html>404 Not Found</html>", Standing.NOT_THE_PROVIDER),
        (404, b"", Standing.NOT_THE_PROVIDER),
        (404, b'{"error": "ResourceNotFound"}', Standing.NOT_THE_PROVIDER),
        (404, b'{"code": "ResourceNotFound"}', Standing.NOT_THE_PROVIDER),
        (404, error("ParentResourceNotFound"), Standing.NO_CLUSTER),
        (404, error("ResourceGroupNotFound"), Standing.NO_CLUSTER),
        (404, error("NotFound"), Standing.FAILING),
        (403, error("ResourceNotFound"), Standing.NOT_AUTHORIZED),
        (410, error("ResourceNotFound"), Standing.FAILING),
        (500, error("ResourceNotFound"), Standing.FAILING),
    ],
)
def test_no_other_answer_says_so(status: int, body: bytes, standing: Standing) -> None:
    assert judge(status, {}, body).standing is standing


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        (401, Standing.NOT_AUTHORIZED),
        (403, Standing.NOT_AUTHORIZED),
        (429, Standing.THROTTLED),
        (408, Standing.FAILING),
        (500, Standing.FAILING),
        (503, Standing.FAILING),
        (400, Standing.FAILING),
    ],
)
def test_refusals_are_told_apart(status: int, standing: Standing) -> None:
    verdict = judge(status, {"Retry-After": "7"}, error("SomeCode", "In these words."))
    assert (verdict.standing, verdict.after) == (standing, 7.0)
    assert "SomeCode: In these words." in verdict.message


def test_a_redirect_is_not_the_provider() -> None:
    assert judge(302, {"Location": "http://portal.example"}, b"").standing is Standing.NOT_THE_PROVIDER
