"""Tests of a provider that could use the tokens of its nodes in Azure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_node.agent.provider.poll_result import ProviderState
from tests.service.agent.daemon.fake_providers import answer, read_request, refusal
from tests.service.agent.daemon.harness import AUDIENCE, agent_on, bundle_for, script

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.agent.daemon.harness import Agent

ARM = "https://management.azure.com"
KEY = "a key that is long enough for this algorithm"


class RecordingProvider:
    """Records the tokens that nodes send."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def __call__(self, link: socket.socket, _: threading.Event) -> None:
        head = read_request(link).decode("latin-1")
        sent = [line for line in head.splitlines() if line.lower().startswith("authorization:")]
        self.tokens += [line.split()[-1] for line in sent]
        refused = refusal("401 Unauthorized", "AuthenticationFailed")
        link.sendall(answer("304 Not Modified", b"", 'etag: "1"') if sent else refused)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Returns a program that signs in for the audience of the configuration that it reads."""
    tokens = {each: jwt.encode({"aud": each}, KEY) for each in (ARM, AUDIENCE, "https://vault.azure.net")}
    cases = "".join(
        f"""*'"audience": "{audience}"'*) echo '{json.dumps({"token": token, "seconds": 3600})}';; """
        for audience, token in tokens.items()
    )
    return script(tmp_path, f'case "$(cat)" in {cases} esac')


@pytest.fixture
def joined_to(
    tmp_path: Path, serve: Callable[..., int], authority: CertificateAuthority, program: str
) -> Callable[[RecordingProvider, str], Agent]:
    """Returns a function that creates an agent which joined with this audience."""

    def make(provider: RecordingProvider, audience: str) -> Agent:
        url, ca = f"https://localhost:{serve(provider)}", authority.certificate.read_bytes()
        document: dict[str, Any] = json.loads(bundle_for(url, ca))
        document["config"]["provider"]["audience"] = audience
        return agent_on(tmp_path / "root", json.dumps(document), "edge-1", program)

    return make


@pytest.mark.parametrize("audience", [ARM, "https://vault.azure.net"])
def test_azure_token_is_not_sent_to_self_hosted_provider(
    joined_to: Callable[[RecordingProvider, str], Agent], audience: str
) -> None:
    """The provider asks for Azure tokens by the configuration of the node, and could use them in Azure."""
    provider = RecordingProvider()
    result = joined_to(provider, audience).provider.poll("1", 0)

    assert (result.state, provider.tokens) == (ProviderState.SIGN_IN_FAILED, [])
    assert f"Tokens for {audience} are not sent to https://localhost:" in result.message
    assert "auth.tenants[].audiences" in result.message


def test_azure_token_under_another_name_is_not_sent(
    joined_to: Callable[[RecordingProvider, str], Agent], tmp_path: Path
) -> None:
    """The issued token is for Azure, although the configured audience is not."""
    provider = RecordingProvider()
    agent = joined_to(provider, AUDIENCE)
    script(
        tmp_path, f"cat >/dev/null; echo '{json.dumps({'token': jwt.encode({'aud': ARM}, KEY), 'seconds': 3600})}'"
    )
    assert agent.provider.poll("1", 0).state is ProviderState.SIGN_IN_FAILED
    assert provider.tokens == []
