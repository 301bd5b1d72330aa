"""Tests of a provider that does not know the node key, such as one restored from a backup."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import jwt
import pytest

from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.provider.node_assertions import NodeAssertions
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.api.arm_errors import NODE_KEY_TIME
from aks_flex_node.api.node_keys import ASSERTION_TYPE
from tests.service.agent.daemon.fake_providers import answer, read_request, refusal
from tests.service.agent.daemon.harness import AUDIENCE, agent_on, bundle_for, script

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.agent.daemon.harness import Agent


class ForgetfulProvider:
    """Refuses assertions of node keys with a code; accepts tokens of Azure identities, or refuses them too."""

    def __init__(self, code: str = "NodeKeyNotKnown", azure: str = "304 Not Modified") -> None:
        self.code, self.azure = code, azure
        self.kinds: list[str] = []

    def __call__(self, link: socket.socket, _: threading.Event) -> None:
        head = read_request(link).decode("latin-1")
        [token] = [line.split()[-1] for line in head.splitlines() if line.lower().startswith("authorization:")]
        header = token.split(".")[0]
        self.kinds.append(json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))["typ"])
        if self.kinds[-1] == ASSERTION_TYPE:
            link.sendall(refusal("401 Unauthorized", self.code))
        elif self.azure.startswith("304"):
            link.sendall(answer(self.azure, b"", 'etag: "1"'))
        else:
            link.sendall(refusal(self.azure, "AuthorizationFailed"))


@pytest.fixture
def joined_to(
    tmp_path: Path, serve: Callable[..., int], authority: CertificateAuthority
) -> Callable[[ForgetfulProvider], Agent]:
    """Returns a function that creates an agent with an Azure identity and a key that a provider has bound."""
    token = jwt.encode({"aud": AUDIENCE}, "a key that is long enough for this algorithm")
    program = script(tmp_path, f"echo '{json.dumps({'token': token, 'seconds': 3600})}'")

    def make(provider: ForgetfulProvider) -> Agent:
        bundle = bundle_for(f"https://localhost:{serve(provider)}", authority.certificate.read_bytes())
        agent = agent_on(tmp_path / "root", bundle, "edge-1", program)
        store = NodeKeyStore(agent.host)
        store.ensure()
        store.bind("aks-flex-rp:before")
        subject = agent.provider.endpoint.resource_id
        agent.provider.assertions = NodeAssertions(program, agent.host, subject, in_process=True)
        return agent

    return make


def is_bound(agent: Agent) -> bool:
    key = NodeKeyStore(agent.host).read()
    return key is not None and key.is_bound


@pytest.mark.parametrize("code", ["NodeKeyNotKnown", "InvalidAuthenticationToken"])
def test_unknown_key_is_replaced_by_azure_identity(
    joined_to: Callable[[ForgetfulProvider], Agent], code: str
) -> None:
    provider = ForgetfulProvider(code)
    agent = joined_to(provider)

    assert agent.provider.poll("1", 0).state is ProviderState.CONNECTED

    assert provider.kinds == [ASSERTION_TYPE, ASSERTION_TYPE, "JWT"]
    assert not is_bound(agent)  # so the next check has it bound
    assert agent.provider.poll("1", 0).state is ProviderState.CONNECTED
    assert provider.kinds[3:] == ["JWT"]


@pytest.mark.parametrize(
    "provider", [ForgetfulProvider(azure="403 Forbidden"), ForgetfulProvider(NODE_KEY_TIME)], ids=["revoked", "time"]
)
def test_key_is_kept_if_azure_identity_or_time_is_refused(
    joined_to: Callable[[ForgetfulProvider], Agent], provider: ForgetfulProvider
) -> None:
    agent = joined_to(provider)

    assert agent.provider.poll("1", 0).state is ProviderState.FORBIDDEN

    assert is_bound(agent)
