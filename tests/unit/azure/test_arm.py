"""Tests of ARM's errors as messages, and of paged lists."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.azure.arm import ArmClient, AzureCallError, arm_unreachable_error, refused_error
from aks_flex_node.azure.credentials import TokenAuthority
from aks_flex_node.azure.retry_policy import MAX_RETRY_AFTER_SECONDS, BoundedRetryPolicy

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential


@pytest.mark.parametrize(
    ("status", "text", "code", "words", "again"),
    [
        (
            404,
            {"error": {"code": "ResourceNotFound", "message": "No such thing."}},
            "ResourceNotFound",
            "thing.",
            False,
        ),
        (403, {"error": {"code": "AuthorizationFailed", "message": "No"}}, "AuthorizationFailed", "No.", False),
        (429, {"error": {"code": "TooManyRequests"}}, "TooManyRequests", "no message.", True),
        (500, {}, "HTTP 500", "no message.", True),
        (502, {"error": "odd"}, "HTTP 502", "no message.", True),
    ],
)
def test_refused_arm_request_reports_code_message_and_retryability(
    status: int, text: Any, code: str, words: str, again: bool
) -> None:
    error = refused_error(status, json.dumps(text))
    assert (error.status, error.code, error.retryable) == (status, code, again)
    assert error.message.startswith(f"Azure rejected the request ({code}): ")
    assert error.message.endswith(words)
    assert ".." not in error.message


@pytest.mark.parametrize("text", ["", "<html>", "[]", "null"])
def test_refused_arm_request_without_json_reports_http_status(text: str) -> None:
    assert refused_error(503, text).code == "HTTP 503"


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (
            "HTTPSConnection(host='x', port=1): Failed to establish a new connection: [Errno 111] Connection refused",
            "[Errno 111] Connection refused",
        ),
        (
            "HTTPSConnection(port=1): Failed to resolve 'x' ([Errno -3] Temporary failure in name resolution)",
            "Failed to resolve 'x' ([Errno -3] Temporary failure in name resolution)",
        ),
    ],
)
def test_unreachable_error_shows_only_root_cause_of_long_message(cause: str, shown: str) -> None:
    assert arm_unreachable_error("https://x", cause).message == f"https://x cannot be reached: {shown}."


class Pages(ArmClient):
    """Returns three pages and records the requests."""

    def __init__(self, *links: str) -> None:
        super().__init__(cast("TokenCredential", None))
        self.links = [*links]
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]:
        self.asked.append((f"{path} {api_version}", query))
        link = self.links.pop(0) if self.links else None
        return {"value": [{"page": len(self.asked)}], **({"nextLink": link} if link else {})}


def test_arm_list_fetches_all_pages_from_the_same_host() -> None:
    arm = Pages(
        "https://management.azure.com/x?api-version=1&$filter=a%20b&$skipToken=2",
        "https://evil.example/steal?$skiptoken=3",
    )
    assert [each["page"] for each in arm.list("/x", "1", **{"$filter": "a b"})] == [1, 2, 3]
    assert arm.asked == [
        ("/x 1", {"$filter": "a b"}),
        ("/x 1", {"$filter": "a b", "$skipToken": "2"}),
        ("/x 1", {"$skiptoken": "3"}),
    ]


def test_request_to_foreign_host_is_refused() -> None:
    """The request would contain the token."""
    with pytest.raises(AzureCallError, match=r"another host, evil\.example"):
        ArmClient(cast("TokenCredential", None)).send("GET", "https://evil.example/operations/1")


def test_private_authority_disables_instance_discovery() -> None:
    private = TokenAuthority("https://login.flex.internal", "/ca.pem").options()
    assert private["authority"] == "https://login.flex.internal"
    assert private["disable_instance_discovery"] is True
    assert private["transport"].connection_config.verify == "/ca.pem"
    by_proxy = TokenAuthority(proxy="http://proxy.example:3128").options()
    assert by_proxy["proxies"] == {"https": "http://proxy.example:3128"}
    public = TokenAuthority().options()
    assert public["authority"] == "https://login.microsoftonline.com"
    assert "disable_instance_discovery" not in public
    assert public["transport"].connection_config.verify is True


@pytest.mark.parametrize(
    ("after", "again"), [("1", True), (f"{MAX_RETRY_AFTER_SECONDS:.0f}", True), ("16", False), ("3600", False)]
)
def test_retry_after_above_limit_is_not_retried(after: str, again: bool) -> None:
    policy = BoundedRetryPolicy(retry_total=4)
    http = SimpleNamespace(status_code=429, headers={"Retry-After": after})
    answer = cast("Any", SimpleNamespace(http_response=http, http_request=SimpleNamespace(method="GET")))
    assert policy.is_retry(policy.configure_retries({}), answer) is again
