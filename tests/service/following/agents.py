"""The half of an agent that listens to a provider, with its files below a directory of the test's."""

from __future__ import annotations

import base64
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.agent import CURRENT, HOME, NEXT
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.following.accepting import Accepting
from aks_flex_node.agent.following.endpoints import endpoint
from aks_flex_node.agent.following.pace import Pace
from aks_flex_node.agent.following.polling import Poller
from aks_flex_node.agent.following.provider import Provider
from aks_flex_node.agent.following.tokens import Tokens
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.real import RootedHost
from tests.unit.agent.config.samples import CA, CLUSTER_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.following.verdicts import Standing, Verdict
    from aks_flex_node.rp.arm.ids import ClusterId
    from tests.service.rp.api.calling import Api

PROGRAM = str(Path(sys.executable).with_name("aks-flex-node"))
SOON = 20.0  # a bound for what takes a second


@dataclass
class Agent:
    host: RootedHost
    provider: Provider
    heard: list[Verdict] = field(default_factory=list)
    refused: str = ""

    def __post_init__(self) -> None:
        self.accepting = Accepting(self.host, self.provider, self._hear, self._try_way, self.version(CURRENT))

    def _try_way(self, _: str) -> Verdict:
        return self.provider.poll("", 0)

    def _hear(self, verdict: Verdict, refused: str) -> None:
        self.heard.append(verdict)
        self.refused = refused

    def poller(self, interval: float, wait: int) -> Poller:
        accepting = self.accepting
        return Poller(
            self.provider,
            Pace(interval),
            lambda: 0 if accepting.waits else wait,
            lambda: accepting.seen,
            accepting.take,
            lambda verdict: self._hear(verdict, ""),
        )

    def asks(self) -> Verdict:
        """Once, without being held."""
        self.accepting.take(self.provider.poll(self.accepting.seen, 0))
        return self.heard[-1]

    def standing(self) -> Standing | None:
        return self.heard[-1].standing if self.heard else None

    def kept(self, path: str = NEXT) -> dict[str, Any] | None:
        content = self.host.read(path)
        return None if content is None else dict(json.loads(content))

    def version(self, path: str = NEXT) -> str:
        return str((self.kept(path) or {}).get("configVersion", ""))

    def secret(self, path: str = NEXT) -> str:
        return str((self.kept(path) or {})["config"]["azure"]["servicePrincipal"].get("clientSecret", ""))


def agent_on(room: Path, bundle: str, node: str, program: str = PROGRAM) -> Agent:
    """An agent whose node has joined with this bundle."""
    host = RootedHost(room)
    (room / HOME.lstrip("/")).mkdir(parents=True, exist_ok=True)
    host.do(WriteFile(CURRENT, bundle.encode(), 0o600, secret=True))
    config = load_text(bundle, "test", {}, {}).config
    text: Callable[[str], str] = lambda path: (host.read(path) or b"").decode()  # noqa: E731
    tokens = Tokens(program, lambda: text(CURRENT), lambda: text(NEXT))
    return Agent(host, Provider(endpoint(config, node), config, tokens, grace=2.0))


def joined(api: Api, node: str, body: dict[str, Any]) -> str:
    """The bundle of a node that the provider has just been told of."""
    made = api.put(node, body, url=True)
    assert made.status in {200, 201}, made.text
    return api.fetch(made.properties["configUrl"]).text


def bundle_for(url: str, ca: bytes | None, cluster: ClusterId | None = None, **more: Any) -> str:
    """A bundle of somebody whose provider is there."""
    provider = {"url": url, **({"caCertData": base64.b64encode(ca).decode()} if ca else {})}
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
    """A program in place of the one that signs in."""
    path = room / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def eventually(holds: Callable[[], object], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
