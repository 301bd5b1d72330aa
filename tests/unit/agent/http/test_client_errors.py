"""What a failed request means, in plain words, from exceptions as urllib3 raises them."""

from __future__ import annotations

import socket
import ssl

import pytest
from urllib3 import HTTPConnectionPool
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

from aks_flex_node.agent.http.client import explain_failure

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
    "cannot be looked up (DNS)": (NameResolutionError("publisher.example", HERE, socket.gaierror(-2, "x")), True),
    "timed out while connecting": (ConnectTimeoutError(HERE, "timed out"), True),
    "went silent for 30 s": (ReadTimeoutError(HTTPConnectionPool("publisher.example"), "/", "Read timed out."), True),
    "publisher.example refused the connection": (
        raised(NewConnectionError(HERE, "failed"), ConnectionRefusedError(111, "Connection refused")),
        True,
    ),
    "was cut": (ProtocolError("Connection broken", ConnectionResetError(104, "Connection reset by peer")), True),
    "publisher.example was cut": (ProtocolError("Connection broken", IncompleteRead(1, 2)), True),
    "cannot be reached (Network is unreachable)": (OSError(101, "Network is unreachable"), True),
    "failed (WRONG_VERSION_NUMBER)": (SSLError(tls_error := ssl.SSLError(1, "wrong")), True),
}
tls_error.reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize("words", CASES)
def test_the_cause_is_told_in_plain_words(words: str) -> None:
    error, again = CASES[words]
    told = explain_failure(error, "https://publisher.example/kubelet", None, 30.0)
    assert words in told.cause
    assert told.again is again


def test_a_name_that_cannot_be_looked_up_is_told_without_its_port() -> None:
    error = NameResolutionError("publisher.example", HERE, socket.gaierror(-2, "x"))
    told = explain_failure(error, "https://publisher.example:8443/kubelet", None, 30.0)
    assert told.cause == "the name publisher.example cannot be looked up (DNS)"


def test_a_proxy_is_named_in_its_own_words() -> None:
    refused = OSError("Tunnel connection failed: 407 Proxy Authentication Required")
    told = explain_failure(
        ProxyError("Unable to connect to proxy", refused),
        "https://publisher.example/kubelet",
        "http://joe:pw@proxy:3128",
        30,
    )
    assert told.cause.startswith("the proxy proxy:3128 refused to connect us")
    assert not told.again


def test_what_nobody_foresaw_is_named_by_its_kind() -> None:
    told = explain_failure(HTTPError("joe:pw"), "https://publisher.example/kubelet", None, 30.0)
    assert told.cause == "the connection to publisher.example failed (HTTPError)"
