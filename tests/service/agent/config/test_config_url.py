"""Tests of fetching the configuration from a real TLS server, and of the trust in its certificate."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.bootstrap import phases
from aks_flex_node.agent.bootstrap.sources.config_url import FromConfigUrl
from aks_flex_node.agent.config.remote import fetch_config, report_join_failure
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.api import config_urls, sealed_bundles
from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import AUDIENCE_HEADER, KEY_HEADER, url_audience
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.retry import RetryBackoff
from aks_flex_node.settings.models import NodeConfig
from aks_flex_rp.auth.node_assertions import InvalidNodeKey, verify_proof
from aks_flex_rp.crypto.tls_certificates import create_ca, sign_server_certificate
from tests.node_key_client import HeldKey
from tests.service.agent.bundle_servers import Answer, bundle_server
from tests.service.http_servers import Handler, listening
from tests.unit.agent.builders import empty_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_rp.crypto.tls_certificates import CertificateChain
    from tests.service.agent.bundle_servers import BundleServer

PATH = "/configs/canary-of-a-url"
BUNDLE = {"config": {"node": {"name": "edge-1"}, "kubernetes": {"version": "1.34.4"}}, "configVersion": "1708123456"}
QUICK = RetryBackoff(first_delay=0.01, max_delay=0.02, max_retry_after=0.05)
YEAR = 366 * 86400.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BundleServer]:
    with bundle_server(tmp_path / "tls") as running:
        running.answers[PATH] = [Answer(body=json.dumps(BUNDLE).encode())]
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG):
        yield
        assert "canary" not in caplog.text


def fetched(url: str, *, ca_file: str | None = None, https_proxy: str | None = None) -> ConfigBundle:
    sources = DownloadOptions(attempts=2, stall_seconds=5.0, ca_file=ca_file, https_proxy=https_proxy)
    return fetch_config(config_urls.parse(url), sources, QUICK)


def refused(url: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        fetched(url)
    told = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert "canary" not in told
    assert "localhost" in told or "127.0.0.1" in told
    return caught.value


def test_config_url_with_right_pin_fetches_bundle_in_one_request(server: BundleServer) -> None:
    bundle = fetched(server.url(PATH))
    assert json.loads(bundle.text) == BUNDLE
    assert bundle.version == "1708123456"
    assert server.asked == [PATH]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pin": "ab" * 32}, "does not present the CA"),
        ({"pin": ""}, "#ca=sha256"),
        ({"host": "127.0.0.1"}, "certificate"),
    ],
    ids=["wrong pin", "no pin", "another name"],
)
def test_untrusted_config_url_is_refused_before_request(
    server: BundleServer, given: dict[str, str], words: str
) -> None:
    error = refused(server.url(PATH, **given))
    assert error.name == "config-url-untrusted"
    assert words in f"{error.message} {error.hint}"
    assert server.asked == []


def test_config_url_without_pin_accepts_trusted_ca(server: BundleServer, tmp_path: Path) -> None:
    assert fetched(server.url(PATH, pin=""), ca_file=str(tmp_path / "tls/ca.crt")).version == "1708123456"


@dataclass(frozen=True)
class Impostor:
    """A server that shows the real CA certificate but has no certificate signed by it."""

    true: CertificateChain

    def current(self, now: float) -> CertificateChain:
        own = sign_server_certificate(create_ca(now), ("localhost",), now)
        return type(own)(own.key, (own.certificates[0], *self.true.certificates))


def test_impostor_with_copied_ca_certificate_is_refused(tmp_path: Path) -> None:
    true = create_ca(time.time())
    with bundle_server(tmp_path, source=Impostor(true)) as server:
        assert refused(server.url(PATH, pin=true.pin)).name == "config-url-untrusted"
        assert server.asked == []


def test_expired_certificate_is_refused_until_it_is_renewed(tmp_path: Path) -> None:
    with bundle_server(tmp_path, now=time.time() - YEAR) as server:
        server.answers[PATH] = [Answer(body=json.dumps(BUNDLE).encode())]
        url = server.url(PATH)
        error = refused(url)
        assert (error.name, server.asked) == ("config-url-untrusted", [])
        assert "expired" in error.message
        assert server.serving.refresh(time.time())
        assert fetched(url).version == "1708123456"


@pytest.mark.parametrize("status", [403, 404, 410])
def test_dead_config_url_error_explains_how_to_get_new_one(server: BundleServer, status: int) -> None:
    server.answers[PATH] = [Answer(status)]
    error = refused(server.url(PATH))
    assert error.name == "config-url-expired"
    assert "aks-flex-rp node join-command" in error.hint
    assert server.asked == [PATH]


def test_refused_machine_shows_the_message_of_the_provider(server: BundleServer) -> None:
    message = "Node edge-1 lives on the machine edge-a (10.0.0.1)."
    body = json.dumps({"error": {"code": "NodeOnAnotherMachine", "message": message}}).encode()
    server.answers[PATH] = [Answer(409, body=body)]
    with pytest.raises(ConfigError) as caught:
        fetched(server.url(PATH))
    assert caught.value.name == "node-on-another-machine"
    assert message in caught.value.message
    assert server.asked == [PATH]


def test_machine_is_named_when_the_configuration_is_fetched(server: BundleServer) -> None:
    machine = MachineIdentity("1" * 32, "edge-a", "10.0.0.1", "Ubuntu")
    fetch_config(config_urls.parse(server.url(PATH)), DownloadOptions(attempts=1), QUICK, machine)
    assert server.headers[0][MACHINE_HEADER] == machine.header


def test_redirect_of_config_url_is_refused(server: BundleServer) -> None:
    server.answers[PATH] = [Answer(302, headers={"Location": server.url("/canary-elsewhere", pin="")})]
    assert refused(server.url(PATH)).name == "config-url-rejected"
    assert server.asked == [PATH]


def test_oversized_bundle_is_refused(server: BundleServer) -> None:
    server.answers[PATH] = [Answer(body=b" " * (3 << 20))]
    error = refused(server.url(PATH))
    assert error.name == "config-bundle-invalid"
    assert "1 MiB" in error.message


@pytest.mark.parametrize("body", [b"<html>canary</html>", b"[]", b'{"config": "canary"}', b"\xff", b"[" * 100_000])
def test_invalid_bundle_is_refused(server: BundleServer, body: bytes) -> None:
    server.answers[PATH] = [Answer(body=body)]
    assert refused(server.url(PATH)).name == "config-bundle-invalid"


def test_unavailable_provider_is_retried_after_retry_after(server: BundleServer) -> None:
    server.answers[PATH].insert(0, Answer(503, headers={"Retry-After": "0"}))
    assert fetched(server.url(PATH)).version == "1708123456"
    assert server.asked == [PATH, PATH]


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy that forwards connections and records requests."""

    asked: list[bytes]

    def handle(self) -> None:
        lines = []
        while (line := self.rfile.readline()).strip():
            lines.append(line)
        self.asked.append(b"".join(lines))
        host, port = lines[0].split()[1].decode().rsplit(":", 1)
        with socket.create_connection(self.target(host, int(port)), timeout=10) as beyond:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=self._pump, args=(beyond, self.connection))
            back.start()
            self._pump(self.connection, beyond)
            back.join()

    def target(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address to connect to."""
        return host, port

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_proxy_is_used_and_never_receives_secret_path(server: BundleServer) -> None:
    asked: list[bytes] = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("Remembering", (Tunnel,), {"asked": asked})) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            address = f"http://user:password@127.0.0.1:{proxy.server_address[1]}"
            assert fetched(server.url(PATH), https_proxy=address).version == "1708123456"
        finally:
            proxy.shutdown()
            thread.join()
    assert len(asked) == 2  # one to read the certificates, one to fetch
    assert all(b"proxy-authorization" in each.lower() and b"canary" not in each for each in asked)


class Plain(Handler):
    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        body = json.dumps(BUNDLE).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("end", ["", f"#ca=sha256:{'ab' * 32}"])
def test_config_url_over_loopback_may_use_plain_http(end: str) -> None:
    with listening(Plain) as url:
        got = fetch_config(config_urls.parse(f"{url}{PATH}{end}", plain=True), DownloadOptions(attempts=1), QUICK)
    assert json.loads(got.text) == BUNDLE


def reported(url: str, **options: Any) -> bool:
    sources = DownloadOptions(attempts=1, stall_seconds=5.0, **options)
    return report_join_failure(config_urls.parse(url), sources, "Preflight found 1 problem.")


@pytest.mark.parametrize(
    ("status", "accepted"), [(200, True), (403, False), (404, False), (405, False), (500, False)]
)
def test_failed_join_is_reported_to_the_config_url_once(server: BundleServer, status: int, accepted: bool) -> None:
    server.answers[PATH] = [Answer(status)]
    assert reported(server.url(PATH)) is accepted
    assert [json.loads(each) for each in server.reports] == [
        {"joinState": "Failed", "joinFailure": "Preflight found 1 problem."}
    ]


def test_failed_join_is_not_reported_to_an_untrusted_server(server: BundleServer) -> None:
    assert not reported(server.url(PATH, pin="0" * 64))
    assert server.reports == []


def test_failed_preflight_of_a_join_by_url_is_reported_without_secrets(server: BundleServer) -> None:
    server.answers[PATH] = [Answer(200)]
    token = "abcdef.0123456789abcdef"
    url = config_urls.parse(server.url(PATH))
    source = FromConfigUrl(empty_host(), ConfigSelection(url=url), url)
    with pytest.raises(MachineError), source.explain_failure(phases.PREFLIGHT, NodeConfig()):
        raise MachineError("preflight-failed", f"Preflight found 1 problem:\nconfig: token {token} is old.")
    [report] = server.reports
    assert json.loads(report)["joinFailure"] == "Preflight found 1 problem: config: token *** is old."


@pytest.mark.parametrize("phase", [phases.IDENTITY, phases.DAEMON])
def test_failure_that_is_none_of_the_node_of_the_url_is_not_reported(server: BundleServer, phase: JoinPhase) -> None:
    server.answers[PATH] = [Answer(200)]
    url = config_urls.parse(server.url(PATH))
    source = FromConfigUrl(empty_host(), ConfigSelection(url=url), url)
    with pytest.raises(MachineError), source.explain_failure(phase, NodeConfig()):
        raise MachineError("config-node-mismatch", "This machine is another node.")
    assert server.reports == []


def fetched_by_key(server: BundleServer, key: HeldKey) -> ConfigBundle:
    url = config_urls.parse(server.url(PATH))
    return fetch_config(url, DownloadOptions(attempts=2, stall_seconds=5.0), QUICK, prove=key.proof)


def refusal(code: str, status: int, **headers: str) -> Answer:
    return Answer(status, json.dumps({"error": {"code": code, "message": "No."}}).encode(), headers)


def test_fetch_proves_the_key_and_learns_that_it_is_bound(server: BundleServer) -> None:
    key = HeldKey()
    server.answers[PATH][0].headers[AUDIENCE_HEADER] = "aks-flex-rp:x"
    assert fetched_by_key(server, key).key_audience == "aks-flex-rp:x"
    proof = server.headers[0][KEY_HEADER]
    assert verify_proof(proof, url_audience(PATH.rpartition("/")[2])) == key.thumbprint


@pytest.mark.parametrize("code", ["ConfigUrlTaken", "NodeKeyRevoked"])
def test_url_of_another_key_is_refused_with_the_message_of_the_provider(server: BundleServer, code: str) -> None:
    server.answers[PATH] = [refusal(code, 409)]
    with pytest.raises(ConfigError, match="No\\.") as caught:
        fetched_by_key(server, HeldKey())
    assert caught.value.name == "config-url-taken"
    assert len(server.asked) == 1


def test_wrong_clock_is_corrected_once_by_the_time_of_the_server(server: BundleServer) -> None:
    """A machine whose clock is an hour behind gets its configuration with the second request."""
    key, audience = HeldKey(), url_audience(PATH.rpartition("/")[2])
    true = time.time() + 3600
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(true))
    server.answers[PATH] = [refusal("NodeKeyTimeInvalid", 400, Date=date), *server.answers[PATH]]
    assert fetched_by_key(server, key).version
    early, late = (each[KEY_HEADER] for each in server.headers)
    with pytest.raises(InvalidNodeKey):
        verify_proof(early, audience, lambda: true)
    assert verify_proof(late, audience, lambda: true) == key.thumbprint


def test_time_that_stays_wrong_is_reported(server: BundleServer) -> None:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    server.answers[PATH] = [refusal("NodeKeyTimeInvalid", 400, Date=date)]
    with pytest.raises(ConfigError, match="the clock of this machine is wrong"):
        fetched_by_key(server, HeldKey())
    assert len(server.asked) == 2


def test_sealed_bundle_names_the_url_at_the_provider(server: BundleServer, tmp_path: Path) -> None:
    """The storage account gets no proof of the key, which it could not bind."""
    key, document = sealed_bundles.new_key(), {**BUNDLE, config_urls.KEY_URL: "https://provider.example/configs/x"}
    server.answers[PATH] = [Answer(body=sealed_bundles.seal(json.dumps(document).encode(), key))]
    url = config_urls.parse(config_urls.add_key(server.url(PATH, pin=""), key))
    sources = DownloadOptions(attempts=1, ca_file=str(tmp_path / "tls" / "ca.crt"))
    found = fetch_config(url, sources, QUICK, prove=HeldKey().proof)
    assert found.key_url == "https://provider.example/configs/x"
    assert KEY_HEADER not in server.headers[0]
    server.answers[PATH] = [Answer(body=json.dumps(document).encode())]
    assert fetched(server.url(PATH)).key_url == ""
