"""Tests of trust, proxy authentication and error messages of connections."""

from __future__ import annotations

import socket
import ssl
from http.client import BadStatusLine, HTTPException, LineTooLong
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from urllib3 import HTTPConnectionPool, ProxyManager, make_headers
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    IncompleteRead,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from aks_flex_node.agent.http.connections import (
    TlsFiles,
    configured_tls_context,
    explain_failure,
    find_certificate_error,
    make_pool,
    shared_tls_context,
    tls_context,
    url_credentials,
)
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.errors import ArtifactError
from tests.unit.agent.config.builders import PEM

if TYPE_CHECKING:
    from pathlib import Path

HERE = HTTPConnection("publisher.example")
UNTRUSTED = ssl.SSLCertVerificationError(1, "certificate verify failed")
UNTRUSTED.verify_message = "certificate has expired"


def raised(outer: HTTPError, inner: BaseException) -> HTTPError:
    try:
        raise outer from inner
    except HTTPError as error:
        return error


CASES: dict[str, tuple[HTTPError | OSError, bool]] = {
    "publisher.example is not trusted (certificate has expired)": (SSLError(UNTRUSTED), False),
    "the DNS name publisher.example cannot be resolved": (
        NameResolutionError("publisher.example", HERE, socket.gaierror(-2, "x")),
        True,
    ),
    "timed out while connecting": (ConnectTimeoutError(HERE, "timed out"), True),
    "sent no data for 30 s": (
        ReadTimeoutError(HTTPConnectionPool("publisher.example"), "/", "Read timed out."),
        True,
    ),
    "publisher.example refused the connection": (
        raised(NewConnectionError(HERE, "failed"), ConnectionRefusedError(111, "Connection refused")),
        True,
    ),
    "was interrupted": (
        ProtocolError("Connection broken", ConnectionResetError(104, "Connection reset by peer")),
        True,
    ),
    "publisher.example was interrupted": (ProtocolError("Connection broken", IncompleteRead(1, 2)), True),
    "cannot be reached (Network is unreachable)": (OSError(101, "Network is unreachable"), True),
    "failed (WRONG_VERSION_NUMBER)": (SSLError(tls_error := ssl.SSLError(1, "wrong")), True),
}
tls_error.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize("words", CASES)
def test_http_failure_is_explained_with_its_cause(words: str) -> None:
    error, retryable = CASES[words]
    told = explain_failure(error, "https://publisher.example/kubelet", None, 30.0)
    assert words in told.cause
    assert told.retryable is retryable


def test_proxy_failure_names_the_proxy_without_credentials() -> None:
    refused = OSError("Tunnel connection failed: 407 Proxy Authentication Required")
    told = explain_failure(
        ProxyError("Unable to connect to proxy", refused),
        "https://publisher.example/kubelet",
        "http://joe:pw@proxy:3128",
        30,
    )
    assert told.cause.startswith("the proxy proxy:3128 rejected the tunnel connection")
    assert not told.retryable


def test_unexpected_http_failure_is_named_by_its_class() -> None:
    told = explain_failure(HTTPError("joe:pw"), "https://publisher.example/kubelet", None, 30.0)
    assert told.cause == "the connection to publisher.example failed (HTTPError)"


def test_a_refused_certificate_is_found_in_the_chain_of_exceptions() -> None:
    assert find_certificate_error(SSLError(UNTRUSTED)) is UNTRUSTED
    assert find_certificate_error(SSLError(tls_error)) is None


@pytest.fixture
def no_system_cas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trust_as_system(monkeypatch, tmp_path, "")


def trust_as_system(monkeypatch: pytest.MonkeyPatch, folder: Path, pem: str) -> None:
    """Makes OpenSSL use these CAs as the system's."""
    (folder / "system.pem").write_text(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "system.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder / "none"))


def test_the_systems_cas_are_trusted_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trust_as_system(monkeypatch, tmp_path, PEM)
    assert tls_context(system=True).get_ca_certs()
    assert not tls_context(system=False).get_ca_certs()


@pytest.mark.usefixtures("no_system_cas")
def test_a_ca_can_be_given_as_file_pem_or_der(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM)
    by_file = tls_context(system=False, ca_file=str(tmp_path / "ca.pem"))
    by_pem = tls_context(system=False, pem=PEM.encode())
    by_der = tls_context(system=False, der=ssl.PEM_cert_to_DER_cert(PEM))
    assert len(by_file.get_ca_certs()) == 1
    assert by_file.get_ca_certs() == by_pem.get_ca_certs() == by_der.get_ca_certs()
    assert not tls_context(system=True).get_ca_certs()


def test_connections_share_the_systems_cas_until_a_file_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust_as_system(monkeypatch, tmp_path, PEM)
    (tmp_path / "ca.pem").write_text(PEM)
    first = shared_tls_context(None)
    assert shared_tls_context(None) is first
    assert shared_tls_context(str(tmp_path / "ca.pem")) is not first

    trust_as_system(monkeypatch, tmp_path, f"{PEM}\n")
    assert shared_tls_context(None) is not first


def test_cas_of_a_directory_are_read_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CA that is removed from the directory changes no file that could tell."""
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: SimpleNamespace(cafile=None))
    assert shared_tls_context(None) is not shared_tls_context(None)


@pytest.mark.parametrize("partial", [False, True])
def test_every_context_verifies_servers_and_their_names(partial: bool) -> None:
    context = tls_context(system=False, pem=PEM.encode(), partial_chain=partial)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert bool(context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN) is partial


def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"The CA file .*/missing\.pem cannot be used"):
        configured_tls_context(str(tmp_path / "missing.pem"))


def test_a_pool_has_the_limits_and_the_trust_that_are_given() -> None:
    context = tls_context(system=False, pem=PEM.encode())
    settings = make_pool(DownloadOptions(parallel=3, stall_seconds=5.0), None, context).connection_pool_kw
    assert (settings["maxsize"], settings["ssl_context"]) == (3, context)
    assert (settings["timeout"].connect_timeout, settings["timeout"].read_timeout) == (5.0, 5.0)
    quick = make_pool(DownloadOptions(connect_seconds=3.0), None, context).connection_pool_kw["timeout"]
    assert (quick.connect_timeout, quick.read_timeout) == (3.0, 30.0)


def test_files_are_read_by_each_connection_and_trust_no_others() -> None:
    settings = make_pool(DownloadOptions(), None, TlsFiles("/ca.crt", "/client.pem")).connection_pool_kw
    found = {name: settings[name] for name in ("cert_reqs", "ca_certs", "cert_file")}
    assert found == {"cert_reqs": "CERT_REQUIRED", "ca_certs": "/ca.crt", "cert_file": "/client.pem"}
    assert "ssl_context" not in settings


def test_the_login_of_a_proxy_is_a_header_and_not_in_its_url() -> None:
    pool = make_pool(DownloadOptions(), "http://joe:p%40w@proxy:3128", TlsFiles("/ca.crt"))
    assert isinstance(pool, ProxyManager)
    assert pool.proxy is not None
    assert str(pool.proxy) == "http://proxy:3128"
    assert pool.proxy_headers == make_headers(proxy_basic_auth="joe:p@w")


@pytest.mark.parametrize(
    ("host", "login"),
    [("h", ""), ("joe@h", "joe:"), ("joe:@h", "joe:"), ("joe:p@w@h", "joe:p@w"), ("j%6fe:%3A@h", "joe::")],
)
def test_a_login_has_a_name_and_a_password(host: str, login: str) -> None:
    assert url_credentials(f"http://{host}:3128") == login


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HTTPException("got more than 100 headers"), "got more than 100 headers"),
        (LineTooLong("header line"), "got more than 65536 bytes when reading header line"),
        (BadStatusLine("\x1b[2Jevil\r\n"), "?[2Jevil"),
    ],
)
def test_invalid_http_response_is_named(error: HTTPException, text: str) -> None:
    failed = explain_failure(ProtocolError("Connection aborted.", error), "https://mirror.example/x", None, 5.0)
    assert failed.cause.startswith("mirror.example did not send a valid HTTP response (")
    assert text in failed.cause
    assert "\x1b" not in failed.cause
