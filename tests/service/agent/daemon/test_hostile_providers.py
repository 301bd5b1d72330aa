"""Tests of impostors and of a failing provider: each has a named error, and none changes a node."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from tests.service.agent.daemon.fake_providers import (
    answer,
    cuts,
    drips,
    forwards,
    hangs,
    never_ends,
    refusal,
    says,
    serving,
)
from tests.service.agent.daemon.harness import agent_on, bundle_for, script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificatePair
    from tests.service.agent.daemon.harness import Agent

TOKEN = "canary-token"
HTML = b"<html>Please sign in to the hotel</html>"
PASSWORD = "canary-of-the-proxy"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Returns a program that signs in immediately and counts its calls."""
    return script(tmp_path, f'''cat >/dev/null; echo >>"$0.calls"; echo '{{"token": "{TOKEN}", "seconds": 3600}}' ''')


@pytest.fixture
def meet(
    tmp_path: Path, serve: Callable[..., int], authority: CertificateAuthority, program: str
) -> Callable[..., Agent]:
    """Returns a function that creates an agent whose provider has this behavior."""

    def make(does: Any, *shows: CertificatePair, trusts: CertificateAuthority = authority, **more: Any) -> Agent:
        url = f"https://localhost:{serve(does, *shows)}"
        return agent_on(
            tmp_path / "root", bundle_for(url, trusts.certificate.read_bytes(), **more), "edge-1", program
        )

    return make


CASES: dict[str, tuple[Any, ProviderState]] = {
    "a portal's page": (says(answer("200 OK", HTML, "content-type: text/html")), ProviderState.UNEXPECTED_RESPONSE),
    "a portal's 404": (says(answer("404 Not Found", HTML)), ProviderState.UNEXPECTED_RESPONSE),
    "JSON of somebody else": (says(answer("200 OK", b'{"properties": {}}')), ProviderState.UNEXPECTED_RESPONSE),
    "garbage": (says(b"\x00\xff not HTTP at all\r\n\r\n"), ProviderState.UNREACHABLE),
    "nothing": (says(b""), ProviderState.UNREACHABLE),
    "an answer that is cut": (cuts, ProviderState.UNREACHABLE),
    "silence": (hangs, ProviderState.UNREACHABLE),
    "a body that never ends": (never_ends, ProviderState.UNEXPECTED_RESPONSE),
    "a body that drips": (drips, ProviderState.UNREACHABLE),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_response_maps_to_provider_state_and_changes_nothing(case: str, meet: Callable[..., Agent]) -> None:
    does, standing = CASES[case]
    agent = meet(does)
    verdict = agent.asks()
    assert verdict.state is standing, verdict
    assert verdict.message
    assert (agent.kept(), agent.accepting.newest_version) == (None, "1")
    assert TOKEN not in repr(agent.heard)


@pytest.mark.parametrize("case", [case for case in CASES if case != "JSON of somebody else"])
def test_hostile_response_to_action_raises_same_provider_state(case: str, meet: Callable[..., Agent]) -> None:
    does, standing = CASES[case]
    agent = meet(does)
    with pytest.raises(ProviderRequestError) as caught:
        agent.provider.post_action("reportStatus", {"conditions": []})
    assert caught.value.result.state is standing


def test_retry_after_header_name_is_case_insensitive(meet: Callable[..., Agent]) -> None:
    """The provider's server sends header names in lower case."""
    for name in ("retry-after", "Retry-After", "RETRY-AFTER"):
        agent = meet(says(refusal("429 Slowly", "TooManyRequests", f"{name}: 17")))
        assert agent.asks().retry_after == 17.0


def test_refused_provider_token_is_replaced_only_once_per_poll(meet: Callable[..., Agent], tmp_path: Path) -> None:
    agent = meet(says(refusal("401 Unauthorized", "AuthenticationFailed")))
    agent.asks()
    assert len((tmp_path / "program.calls").read_text()) == 2
    agent.asks()
    assert len((tmp_path / "program.calls").read_text()) == 3


def test_provider_certificate_of_unknown_ca_is_untrusted(meet: Callable[..., Agent], tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other")
    other.ensure()
    agent = meet(says(refusal("404 Not Found", "ResourceNotFound")), trusts=other)
    verdict = agent.asks()
    assert verdict.state is ProviderState.UNTRUSTED
    assert "is not trusted" in verdict.message


def test_provider_certificate_for_another_name_is_untrusted(
    meet: Callable[..., Agent], authority: CertificateAuthority
) -> None:
    shows = authority.issue("elsewhere", "elsewhere", names=("elsewhere.example",))
    agent = meet(says(refusal("404 Not Found", "ResourceNotFound")), shows)
    assert agent.asks().state is ProviderState.UNTRUSTED


def test_provider_that_cannot_be_connected_is_reported_as_unreachable(
    tmp_path: Path, authority: CertificateAuthority, program: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for origin, cause in (
        (f"localhost:{port}", f"localhost:{port} refused the connection"),
        ("provider.invalid:8443", "the DNS name provider.invalid cannot be resolved"),
    ):
        text = bundle_for(f"https://{origin}", authority.certificate.read_bytes())
        verdict = agent_on(tmp_path / "root", text, "edge-1", program).asks()
        assert verdict.state is ProviderState.UNREACHABLE
        assert cause in verdict.message


def proxy_login() -> str:
    return f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"


def test_provider_is_polled_through_proxy_with_password(meet: Callable[..., Agent]) -> None:
    seen: list[str] = []
    with serving(forwards(proxy_login(), seen), None) as proxy:
        way = {"https": f"http://me:{PASSWORD}@127.0.0.1:{proxy}"}
        agent = meet(says(refusal("403 Forbidden", "AuthorizationFailed")), proxy=way)
        assert agent.asks().state is ProviderState.FORBIDDEN
    assert seen
    assert all(head.startswith("CONNECT localhost:") for head in seen)
    assert TOKEN not in str(seen)


def test_proxy_refusal_is_reported_without_password(meet: Callable[..., Agent]) -> None:
    with serving(forwards("Basic other", []), None) as proxy:
        way = {"https": f"http://me:{PASSWORD}@127.0.0.1:{proxy}"}
        agent = meet(says(answer("200 OK", HTML)), proxy=way)
        verdict = agent.asks()
    assert verdict.state is ProviderState.UNREACHABLE
    assert f"the proxy 127.0.0.1:{proxy}".lower() in verdict.message.lower()
    assert PASSWORD not in repr(agent.heard)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Yields an address with a full backlog: further connections time out."""
    with socket.create_server(("127.0.0.2", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2", port
        for each in waiting:
            each.close()


@pytest.mark.parametrize("first", ["refuses", "is silent"])
def test_poll_tries_next_address_when_first_does_not_answer(
    first: str, meet: Callable[..., Agent], silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = meet(says(refusal("403 Forbidden", "AuthorizationFailed")))
    port = int(agent.provider.endpoint.origin.rpartition(":")[2])
    dead = silent if first == "is silent" else ("127.0.0.3", port)
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*stream, dead), (*stream, ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert agent.asks().state is ProviderState.FORBIDDEN
