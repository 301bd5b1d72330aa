"""Tests of config URLs: access without credentials, and expiry."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api.bodies import token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running


def attempt(service: Running, name: str) -> None:
    """Lets the machine ask for its certificate."""
    [used] = [each for each, (node, _) in service.clusters.tokens.items() if node == name]
    service.call(service.tracker.on_token_csr(PLANT.key, name, used, "csr-1"))


ENDINGS: dict[str, Callable[[Running, str], object]] = {
    "PUT": lambda service, name: service.admin.put(name, token()),
    "PUT with a URL": lambda service, name: service.admin.put(name, token(), url=True),
    "another URL": lambda service, name: service.admin.regenerate(name),
    "deletion": lambda service, name: service.admin.delete(name),
    "join attempt": attempt,
}


def test_list_config_url_replaces_url_and_is_audited(admin: Api, name: str) -> None:
    before = admin.url_of(name, token())

    answer = admin.list_url(name)

    assert admin.fetch(answer.json["configUrl"]).status == 200
    assert admin.fetch(before).status == 404
    assert answer.json.keys() == admin.regenerate(name).json.keys()
    whats = [each["what"] for each in admin.events(name)]
    assert whats.count("regenerateToken") == 2


def test_config_url_can_be_fetched_repeatedly_before_it_expires(admin: Api, name: str) -> None:
    url = admin.url_of(name, token())

    first, second = admin.fetch(url), admin.fetch(url)

    assert (first.status, second.status) == (200, 200)
    assert first.content == second.content
    assert first.headers["cache-control"] == "no-store"
    assert first.headers["content-type"] == "application/json"


@pytest.mark.parametrize("end", ENDINGS)
def test_config_url_and_its_token_end_by_write_deletion_or_join_attempt(
    service: Running, name: str, end: str
) -> None:
    url = service.admin.url_of(name, token())
    used = service.admin.fetch(url).json["config"]["azure"]["bootstrapToken"]["token"].partition(".")[0]
    assert used in service.clusters.tokens

    ENDINGS[end](service, name)

    service.admin.fetch(url).assert_refused(404, "ConfigUrlNotFound")
    assert (used in service.clusters.tokens) is (end == "join attempt")  # it was used once


def test_node_is_deleted_even_if_bootstrap_token_cannot_be_revoked(service: Running, name: str) -> None:
    service.admin.put(name, token(), url=True)
    with service.clusters.being_away():
        gone = service.admin.delete(name)

    assert gone.json["cleanup"] == {
        "configUrlRevoked": True,
        "bootstrapTokenRevoked": False,
        "monitoringDisabled": True,
    }


def test_create_returns_503_and_stores_nothing_when_cluster_is_unreachable(service: Running, name: str) -> None:
    with service.clusters.being_away():
        refused = service.admin.put(name, token(), url=True)

    refused.assert_refused(503, "ServiceUnavailable")
    assert refused.headers["retry-after"]
    assert service.admin.get(name).status == 404


@pytest.mark.parametrize("wrong", ["x", "...", "%00", "%2e%2e%2f", "a" * 4000, "*", "%ff"])
def test_guessed_config_url_returns_404_like_revoked_one(admin: Api, wrong: str) -> None:
    assert admin.connection.ask("GET", f"/configs/{wrong}", {}).status == 404
    admin.connection.ask("GET", f"/configs/{secrets.token_urlsafe(32)}", {}).assert_refused(404, "ConfigUrlNotFound")


def test_head_request_does_not_consume_config_url(admin: Api, name: str) -> None:
    url = admin.url_of(name, token())

    assert admin.fetch(url, "HEAD").status == 405
    assert admin.status(name)["joinState"] == "Created"


def test_config_url_fetch_is_audited_with_source_address(admin: Api, name: str) -> None:
    url = admin.url_of(name, token())
    request = admin.fetch(url).headers["x-ms-request-id"]

    assert admin.status(name)["joinState"] == "ConfigFetched"
    [event] = admin.events(name, "configUrl.fetched")
    assert (event["source"], event["request"], event["who"]) == ("127.0.0.1", request, "bearer of the URL")


def test_put_without_config_url_creates_no_bootstrap_token(service: Running, name: str) -> None:
    before = dict(service.clusters.tokens)

    assert "configUrl" not in service.admin.put(name, token(), url=False).properties
    assert "configUrl" not in service.admin.get(name).properties
    assert service.clusters.tokens == before
