"""Fakes of the daemon's environment: a provider with predefined responses, and a simulated machine."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.cluster.nodes import ClusterNode
from aks_flex_node.agent.config_sources.provider_source import ProviderSource
from aks_flex_node.agent.daemon.drift_monitor import DriftMonitor
from aks_flex_node.agent.job_records.job_result import RESULT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.managed_node import ManagedNode
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError, provider_endpoint
from aks_flex_node.agent.provider.provider_tokens import SignInError
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import JOIN, engine_on
from tests.unit.agent.config.builders import CLUSTER_ID, load_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.node_watch import NodeSnapshot
    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.provider.provider_client import ProviderClient
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig

CLIENT = "11111111-0000-4000-8000-000000000000"
OTHER = "22222222-0000-4000-8000-000000000000"
OLD, NEW = "canary-of-the-old-secret", "canary-of-the-new-secret"
CONNECTED = PollResult(ProviderState.CONNECTED)
READY = ClusterNode.read(
    {
        "metadata": {"name": "edge-1"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "well"}],
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        },
    }
)
WELL = NodeHealth(READY, certificate_seconds=1e7, certificate_lifetime=3e7)


def settings(client: str = CLIENT, secret: str = "", **more: Any) -> dict[str, Any]:
    """Returns a configuration as the provider returns it; with a secret, as the machine stores it."""
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


def news(version: str, config: dict[str, Any]) -> PollResult:
    return PollResult(ProviderState.CONNECTED, changed=True, version=version, config=config)


def kept(host: RecordedHost, path: str = NEXT_CONFIG) -> dict[str, Any] | None:
    """Returns the content of one of the agent's files."""
    content = host.read(path)
    return None if content is None else dict(json.loads(content))


def put(host: RecordedHost, path: str, content: bytes) -> None:
    host.apply(WriteFile(path, content, 0o600))


@dataclass(repr=False)
class FakeTokens:
    """A simulated Entra ID that accepts some secrets."""

    good: set[str] = field(default_factory=lambda: {OLD})
    tried: list[str] = field(default_factory=list)

    def check_credentials(self, text: str) -> None:
        secret = json.loads(text)["config"]["azure"]["servicePrincipal"].get("clientSecret", "")
        self.tried.append(secret)
        if secret not in self.good:
            raise SignInError(FlexError("sign-in-refused", "Entra does not know that secret.", "Wait."))


@dataclass(repr=False)
class FakeProvider:
    """A provider with predefined responses to actions, which it records. Polls wait until the end."""

    answers: dict[str, dict[str, Any] | ProviderRequestError] = field(default_factory=dict)
    tokens: FakeTokens = field(default_factory=FakeTokens)
    acts: list[tuple[str, Any]] = field(default_factory=list)
    polls: int = 0
    assertions: None = None
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def config(self) -> NodeConfig:
        return load_plain(json.dumps(settings())).config

    @property
    def endpoint(self) -> Any:
        return provider_endpoint(self.config, "edge-1")

    def poll(self, version: str, wait: int) -> PollResult:  # noqa: ARG002
        self.polls += 1
        self.closed.wait(60)
        return CONNECTED

    def post_action(self, action: str, body: Any = None) -> dict[str, Any]:
        self.acts.append((action, body))
        answer = self.answers.get(action, {})
        if isinstance(answer, ProviderRequestError):
            raise answer
        return answer

    def with_azure_identity(self) -> FakeProvider:
        return self

    def close(self) -> None:
        self.closed.set()

    def has(self, secret: str, client: str = CLIENT) -> FakeProvider:
        """Sets the response to listCredentials."""
        self.answers["listCredentials"] = {"servicePrincipal": {"clientId": client, "clientSecret": secret}}
        return self

    @property
    def real(self) -> ProviderSource:
        return ProviderSource(cast("ProviderClient", self), self.config, "edge-1")


class FakeHost(RecordedHost):
    """A machine on which a job ends immediately with a predefined result, or when it is released."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__({CURRENT_CONFIG: bundle("1", config or settings(secret=OLD))})
        self.works: list[str] = []
        self.job_arguments: list[tuple[str, ...]] = []
        self.outcomes: list[JobResult | None] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] != "systemd-run":
            return super().query(*argv, seconds=seconds)
        self.job_arguments.append(argv[argv.index("job") + 2 :])
        self.works.append(argv[argv.index("job") + 1])
        self.goes_on.wait(30)
        done = JobResult(JobKind(self.works[-1]), JobStatus.DONE, at=str(len(self.works)))
        outcome = self.outcomes.pop(0) if self.outcomes else done
        if outcome:
            RESULT.write(self, outcome)
        return CommandResult(0)


class StillNode(ManagedNode):
    """A node that is healthy without checks of services and cluster."""

    def check_health(self) -> NodeHealth:
        return WELL

    def has_operation(self) -> bool:
        return False

    def watch_node(self, on_change: Callable[[NodeSnapshot], None]) -> None: ...


class StillMonitor(DriftMonitor):
    """A drift monitor whose result is set by the test."""

    differs: tuple[Drift, ...] = ()

    def watch(self, on_change: Callable[[frozenset[str]], None]) -> None: ...

    def check(self) -> tuple[Drift, ...]:
        fresh = tuple(one for one in self.differs if one not in self.found)
        self.found = self.differs
        return fresh


class Quiet:
    """A cluster without requests."""

    def close(self) -> None: ...


def engine_of(host: FakeHost) -> Engine:
    """Returns an engine for the current configuration."""
    config = load_plain((host.read(CURRENT_CONFIG) or b"").decode(), CURRENT_CONFIG).config
    return engine_on(host, config)


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits until a condition that another thread causes is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)
