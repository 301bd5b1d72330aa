"""Tests of the requests of a machine that enrols, to a real TLS server: what is retried, and when its key is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.bootstrap.sources.first_contact import NOT_ENROLLED, fetch_with_key
from aks_flex_node.agent.config.remote import fetch_config
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import STATE_DIR
from aks_flex_node.api import config_urls
from aks_flex_node.api.node_keys import url_audience
from aks_flex_node.errors import ConfigError
from aks_flex_node.retry import RetryBackoff
from aks_flex_rp.auth.node_assertions import verify_proof
from tests.service.agent.bundle_servers import Answer, bundle_server
from tests.unit.agent.builders import empty_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.config.remote import ConfigBundle
    from tests.hosts.recorded import RecordedHost
    from tests.service.agent.bundle_servers import BundleServer

PATH, CONFIG_PATH = "/enrolments/x-of-a-url", "/configs/x-of-a-url"
BUNDLE = Answer(body=json.dumps({"config": {"node": {"name": "edge-1"}}, "configVersion": "1"}).encode())
QUICK = RetryBackoff(first_delay=0.01, max_delay=0.02, max_retry_after=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BundleServer]:
    with bundle_server(tmp_path / "tls") as running:
        yield running


def refusal(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, json.dumps({"error": {"code": code, "message": "No."}}).encode(), headers)


def enrol(host: RecordedHost, server: BundleServer, attempts: int = 2) -> ConfigBundle:
    url, sources = config_urls.parse(server.url(PATH)), DownloadOptions(attempts=attempts, stall_seconds=5.0)
    return fetch_with_key(
        host, STATE_DIR, lambda prove: fetch_config(url, sources, QUICK, prove=prove, facts={}), NOT_ENROLLED
    )


def key_of(report: bytes) -> str:
    return verify_proof(json.loads(report)["proof"], url_audience(PATH.rpartition("/")[2]))


def test_busy_enrolment_is_retried_after_retry_after(server: BundleServer) -> None:
    server.answers[PATH] = [refusal(409, "Conflict", **{"Retry-After": "0"}), BUNDLE]
    assert enrol(empty_host(), server).version == "1"
    assert len(server.asked) == 2


@pytest.mark.parametrize("path", [PATH, CONFIG_PATH])
def test_refusals_and_config_urls_are_not_retried(server: BundleServer, path: str) -> None:
    code = "EnrolmentExhausted" if path == PATH else "Conflict"
    server.answers[path] = [refusal(409, code, **{"Retry-After": "0"}), BUNDLE]
    with pytest.raises(ConfigError):
        fetch_config(config_urls.parse(server.url(path)), DownloadOptions(attempts=2), QUICK)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusal(409, "Conflict", **{"Retry-After": "0"}),
        refusal(409, "Conflict"),
        refusal(400, "InvalidRequestContent"),
        refusal(403, "AuthorizationFailed"),
        refusal(404, "ResourceNotFound"),
        refusal(412, "PreconditionFailed"),
        refusal(500, "InternalServerError"),
    ],
)
def test_machine_that_may_have_a_use_comes_back_with_its_key(server: BundleServer, answer: Answer) -> None:
    """The provider gave a use to the key, and then failed. With another key, the machine would be a clone."""
    host = empty_host()
    server.answers[PATH] = [answer, BUNDLE]
    with pytest.raises(ConfigError):
        enrol(host, server, attempts=1)
    enrol(host, server)
    first, second = map(key_of, server.reports)
    key = NodeKeyStore(host).read()
    assert key is not None
    assert first == second == key.thumbprint


def test_machine_with_an_unknown_url_stays_as_it_was(server: BundleServer) -> None:
    host = empty_host()
    server.answers[PATH] = [refusal(404, "EnrolmentNotFound")]
    with pytest.raises(ConfigError):
        enrol(host, server)
    assert host.stat(STATE_DIR) is None
