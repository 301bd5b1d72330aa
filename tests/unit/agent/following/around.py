"""Who stands around the agent that stays: a provider that says what it is told, and a still machine."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent.cluster.nodes import Node
from aks_flex_node.agent.components.agent import CURRENT, NEXT, WORK
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.following.endpoints import endpoint
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.following.sights import Sight
from aks_flex_node.agent.following.site import Site
from aks_flex_node.agent.following.tokens import SignInError
from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.agent.works import Outcome, write
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.dry import RecordedHost
from aks_flex_node.host.host import Answer
from tests.unit.agent.config.samples import CLUSTER_ID
from tests.unit.agent.given import JOIN, engine_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.drifting.drifts import Drift
    from aks_flex_node.agent.following.provider import Provider

CLIENT = "11111111-0000-4000-8000-000000000000"
OTHER = "22222222-0000-4000-8000-000000000000"
OLD, NEW = "canary-of-the-old-secret", "canary-of-the-new-secret"
FOLLOWING = Verdict(Standing.FOLLOWING)
READY = Node.read(
    {
        "metadata": {"name": "edge-1"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "well"}],
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        },
    }
)
WELL = Sight(READY, seconds=1e7, life=3e7)


def settings(client: str = CLIENT, secret: str = "", **more: Any) -> dict[str, Any]:
    """A configuration as the provider shows it; with a secret, as the machine keeps it."""
    kubelet = {"serverURL": JOIN["node.kubelet.serverURL"], "caCertData": JOIN["node.kubelet.caCertData"]}
    principal = {"clientId": client, "tenantId": "tenant-1", **({"clientSecret": secret} if secret else {})}
    return {
        "continuousMonitoring": True,
        "azure": {"targetCluster": {"resourceId": CLUSTER_ID}, "servicePrincipal": principal},
        "node": {"kubelet": kubelet},
        "kubernetes": {"version": "1.34.4"},
        **more,
    }


def bundle(version: str, config: dict[str, Any]) -> bytes:
    return json.dumps({"config": config, "configVersion": version}).encode()


def news(version: str, config: dict[str, Any]) -> Verdict:
    return Verdict(Standing.FOLLOWING, changed=True, version=version, config=config)


def kept(host: RecordedHost, path: str = NEXT) -> dict[str, Any] | None:
    """What stands in a file of the agent's."""
    content = host.read(path)
    return None if content is None else dict(json.loads(content))


def put(host: RecordedHost, path: str, content: bytes) -> None:
    host.do(WriteFile(path, content, 0o600))


@dataclass(repr=False)
class FakeTokens:
    """Entra ID that knows some secrets."""

    good: set[str] = field(default_factory=lambda: {OLD})
    tried: list[str] = field(default_factory=list)

    def prove(self, text: str) -> None:
        secret = json.loads(text)["config"]["azure"]["servicePrincipal"].get("clientSecret", "")
        self.tried.append(secret)
        if secret not in self.good:
            raise SignInError(FlexError("sign-in-refused", "Entra does not know that secret.", "Wait."))


@dataclass(repr=False)
class FakeProvider:
    """Answers actions as it was told; of what it was asked it keeps a list. A poll is held until the end."""

    answers: dict[str, dict[str, Any] | Unanswered] = field(default_factory=dict)
    tokens: FakeTokens = field(default_factory=FakeTokens)
    acts: list[tuple[str, Any]] = field(default_factory=list)
    polls: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> Any:
        return endpoint(load_text(json.dumps(settings()), "test", {}, {}).config, "edge-1")

    def poll(self, version: str, wait: int) -> Verdict:  # noqa: ARG002
        self.polls += 1
        self.closed.wait(60)
        return FOLLOWING

    def act(self, action: str, body: Any = None) -> dict[str, Any]:
        self.acts.append((action, body))
        answer = self.answers.get(action, {})
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    def close(self) -> None:
        self.closed.set()

    def has(self, secret: str, client: str = CLIENT) -> FakeProvider:
        """What it tells whoever asks for credentials."""
        self.answers["listCredentials"] = {"servicePrincipal": {"clientId": client, "clientSecret": secret}}
        return self

    @property
    def real(self) -> Provider:
        return cast("Provider", self)


class FakeHost(RecordedHost):
    """A machine on which a work ends at once, as it was told; or when it is let go."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__({CURRENT: bundle("1", config or settings(secret=OLD))})
        self.works: list[str] = []
        self.outcomes: list[Outcome | None] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def ask(self, *argv: str, seconds: float = 10.0) -> Answer:
        if argv[0] != "systemd-run":
            return super().ask(*argv, seconds=seconds)
        self.works.append(argv[argv.index("work") + 1])
        self.goes_on.wait(30)
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome(self.works[-1], "done", at=str(len(self.works)))
        if outcome:
            write(self, WORK, outcome)
        return Answer(0)


class StillSite(Site):
    """Nobody looks at the real machine: what is seen is what the test says."""

    seen: Sight = WELL
    differs: tuple[Drift, ...] = ()

    def watch(self, touched: Callable[[frozenset[str]], None]) -> None: ...

    def look(self) -> None:
        self.sight = self.seen

    def look_for_drift(self) -> tuple[Drift, ...]:
        fresh = tuple(one for one in self.differs if one not in self.drift)
        self.drift = self.differs
        return fresh


class Quiet:
    """A cluster that nobody asks."""

    def close(self) -> None: ...


def site_on(host: FakeHost, provider: FakeProvider) -> StillSite:
    config = load_text((host.read(CURRENT) or b"").decode(), CURRENT, {}, {}).config
    return StillSite(engine_on(host, config), cast("Api", Quiet()), "edge-1", provider.real)


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """What other threads do is seen soon."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)
