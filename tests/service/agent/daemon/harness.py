"""The part of the daemon that polls a provider, with its files below a directory of the test."""

from __future__ import annotations

import base64
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.daemon.poller import PollBackoff, Poller
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG, STATE_DIR
from aks_flex_node.agent.provider.node_assertions import NodeAssertions
from aks_flex_node.agent.provider.provider_client import ProviderClient, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.real import RootedHost
from tests.node_key_client import HeldKey
from tests.unit.agent.config.builders import CA, CLUSTER_ID, load_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
    from aks_flex_rp.arm.ids import ClusterId
    from tests.service.rp.api.client import Api

PROGRAM = str(Path(sys.executable).with_name("aks-flex-node"))
AUDIENCE = "api://aks-flex-rp"
SOON = 20.0  # an upper limit for what takes a second


@dataclass
class Agent:
    host: RootedHost
    provider: ProviderClient
    source: ProviderSource
    heard: list[PollResult] = field(default_factory=list)
    refused: str = ""

    def __post_init__(self) -> None:
        self.accepting = ConfigReceiver(
            self.host, self.source, self._hear, self._try_way, self.version(CURRENT_CONFIG)
        )

    def _try_way(self, _: str) -> PollResult:
        return self.provider.poll("", 0)

    def _hear(self, verdict: PollResult, refused: str) -> None:
        self.heard.append(verdict)
        self.refused = refused

    def poller(self, interval: float, wait: int) -> Poller:
        accepting = self.accepting
        return Poller(
            self.provider.poll,
            PollBackoff(interval),
            lambda: 0 if accepting.has_pending_credentials else wait,
            lambda: accepting.newest_version,
            accepting.handle,
            lambda verdict: self._hear(verdict, ""),
        )

    def asks(self) -> PollResult:
        """Polls once, without waiting for a change."""
        self.accepting.handle(self.provider.poll(self.accepting.newest_version, 0))
        return self.heard[-1]

    def standing(self) -> ProviderState | None:
        return self.heard[-1].state if self.heard else None

    def kept(self, path: str = NEXT_CONFIG) -> dict[str, Any] | None:
        content = self.host.read(path)
        return None if content is None else dict(json.loads(content))

    def version(self, path: str = NEXT_CONFIG) -> str:
        return str((self.kept(path) or {}).get("configVersion", ""))

    def secret(self, path: str = NEXT_CONFIG) -> str:
        return str((self.kept(path) or {})["config"]["azure"]["servicePrincipal"].get("clientSecret", ""))


def agent_on(room: Path, bundle: str, node: str, program: str = PROGRAM) -> Agent:
    """Returns an agent whose node has joined with this bundle."""
    host = RootedHost(room)
    (room / STATE_DIR.lstrip("/")).mkdir(parents=True, exist_ok=True)
    host.apply(WriteFile(CURRENT_CONFIG, bundle.encode(), 0o600, secret=True))
    config = load_plain(bundle).config
    text: Callable[[str], str] = lambda path: (host.read(path) or b"").decode()  # noqa: E731
    tokens = ProviderTokens(program, lambda: text(CURRENT_CONFIG), lambda: text(NEXT_CONFIG))
    client = ProviderClient(provider_endpoint(config, node), config, tokens, grace=2.0)
    return Agent(host, client, ProviderSource(client, config, node))


def joined(api: Api, node: str, body: dict[str, Any]) -> str:
    """Creates a node at the provider; returns its bundle."""
    made = api.put(node, body, url=True)
    assert made.status in {200, 201}, made.text
    return api.fetch(made.properties["configUrl"]).text


def joined_with_key(room: Path, api: Api, node: str, body: dict[str, Any]) -> Agent:
    """Returns an agent whose node has joined with the key of its machine, which the provider has bound."""
    (room / STATE_DIR.lstrip("/")).mkdir(parents=True)
    key = NodeKeyStore(RootedHost(room)).ensure()
    made = api.put(node, body, url=True)
    bundle = api.fetch(made.properties["configUrl"], key=HeldKey(key.private_key)).text
    agent = agent_on(room, bundle, node)
    subject = agent.provider.endpoint.resource_id
    agent.provider.assertions = NodeAssertions(PROGRAM, agent.host, subject, in_process=True)
    return agent


def bundle_for(url: str, ca: bytes | None, cluster: ClusterId | None = None, **more: Any) -> str:
    """Returns a bundle with this provider."""
    provider = {"url": url, "audience": AUDIENCE, **({"caCertData": base64.b64encode(ca).decode()} if ca else {})}
    azure = {
        "targetCluster": {"resourceId": str(cluster) if cluster else CLUSTER_ID},
        "servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": "canary-secret"},
    }
    kubelet = {"serverURL": "https://cluster.example:443", "caCertData": CA}
    config = {
        "continuousMonitoring": True,
        "provider": provider,
        "azure": azure,
        "node": {"kubelet": kubelet},
        **more,
    }
    return json.dumps({"config": {"kubernetes": {"version": "1.34.4"}, **config}, "configVersion": "1"})


def script(room: Path, text: str) -> str:
    """Returns a script in place of the program that signs in."""
    path = room / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def eventually(holds: Callable[[], object], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
