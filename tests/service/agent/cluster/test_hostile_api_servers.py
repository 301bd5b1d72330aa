"""Tests of other servers at the address of the API server: none of them can say that the Node does not exist."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.cluster import client, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.cluster.node_health import _find_node
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.errors import ClusterError
from tests.remedies.catalogue import advice
from tests.service.agent.daemon.fake_providers import answer, cuts, drips, hangs, never_ends, says

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from aks_flex_lab.pki import CertificateAuthority

HTML = b"<html>Please sign in to the hotel</html>"
UNEXPECTED, UNREACHABLE = "api-server-unexpected-response", "api-server-unreachable"
MISSING = json.dumps({"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}).encode()
OTHERS: dict[str, tuple[Any, str]] = {
    "a portal's page": (says(answer("200 OK", HTML, "content-type: text/html")), UNEXPECTED),
    "a portal's 404": (says(answer("404 Not Found", HTML)), UNEXPECTED),
    "an empty 404": (says(answer("404 Not Found", b"")), UNEXPECTED),
    "another's 404 in JSON": (says(answer("404 Not Found", b'{"detail":"Not Found"}')), UNEXPECTED),
    "a redirect": (says(answer("302 Found", b"", "location: http://portal.example/")), UNEXPECTED),
    "a list": (says(answer("200 OK", b"[]")), UNEXPECTED),
    "a proxy's error": (says(answer("502 Bad Gateway", HTML)), UNEXPECTED),
    "a page that wants a sign-in": (says(answer("401 Unauthorized", HTML)), UNEXPECTED),
    "compressed data": (says(answer("200 OK", b"\x1f\x8b\x08" * 100, "content-encoding: gzip")), UNEXPECTED),
    "a body that never ends": (never_ends, UNEXPECTED),
    "a body that drips": (drips, UNREACHABLE),
    "garbage": (says(b"\x00\xff not HTTP at all\r\n\r\n"), UNREACHABLE),
    "nothing": (says(b""), UNREACHABLE),
    "an answer that is cut": (cuts, UNREACHABLE),
    "silence": (hangs, UNREACHABLE),
}


@pytest.fixture
def api(
    serve: Callable[..., int], authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], ApiClient]:
    """Returns a function that makes a client whose API server has this behavior."""
    monkeypatch.setattr(client, "API_LIMITS", DownloadOptions(parallel=1, stall_seconds=1.0))
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(client, "ANSWER_SECONDS", 1.0)
    return lambda does: ApiClient(f"https://localhost:{serve(does)}", str(authority.certificate))


@pytest.mark.parametrize("case", OTHERS)
def test_only_an_api_server_can_say_that_a_node_is_missing(case: str, api: Callable[[Any], ApiClient]) -> None:
    does, name = OTHERS[case]
    asked = api(does)
    with pytest.raises(ClusterError) as caught:
        nodes.find(asked, "edge-1")
    assert (caught.value.name, caught.value.retryable) == (name, True), caught.value.message
    node, missing, cause, refused = _find_node(asked, "edge-1")
    assert (node, missing, refused) == (None, False, False)
    assert cause


def test_status_of_kubernetes_says_that_a_node_is_missing(api: Callable[[Any], ApiClient]) -> None:
    asked = api(says(answer("404 Not Found", MISSING)))
    assert nodes.find(asked, "edge-1") is None
    assert nodes.is_missing(asked, "edge-1")
    with pytest.raises(ApiStatusError) as caught:
        asked.get("/api/v1/nodes/edge-1")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


def test_api_server_is_asked_again_after_a_portal_lets_the_machine_in(api: Callable[[Any], ApiClient]) -> None:
    """The portal answers in place of the API server until the machine is signed in."""
    portal = [True]
    page = says(answer("200 OK", HTML, "content-type: text/html"))
    missing = says(answer("404 Not Found", MISSING))

    def answers(link: socket.socket, over: threading.Event) -> None:
        (page if portal else missing)(link, over)

    asked = api(answers)
    with pytest.raises(ClusterError) as caught:
        nodes.find(asked, "edge-1")
    assert (caught.value.name, caught.value.retryable) == ("api-server-unexpected-response", True)

    portal.clear()
    assert nodes.is_missing(asked, "edge-1")


@pytest.mark.remedy("api-server-name-not-resolved")
def test_corrected_name_of_the_api_server_is_resolved(
    api: Callable[[Any], ApiClient], authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, *rest: Any, **more: Any) -> Any:
        if name == "localhost.example":  # without waiting for a name server
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(name, *rest, **more)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    right = api(says(answer("404 Not Found", MISSING)))
    wrong = ApiClient(right._server.replace("localhost", "localhost.example"), str(authority.certificate))
    with pytest.raises(ClusterError) as caught:
        nodes.find(wrong, "edge-1")
    assert caught.value.name == "api-server-name-not-resolved"

    advice("api-server-name-not-resolved", "Check `node.kubelet.serverURL` and the name servers.")
    assert nodes.is_missing(right, "edge-1")
