"""The interface of a join source, the source of a local configuration, and the announcement of a node to the provider
that authorizes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context
from aks_flex_node.agent.config.resolved import kubelet_auth, target_cluster
from aks_flex_node.agent.machine import identify_machine
from aks_flex_node.agent.paths import CONFIG_URL_DIGEST, CURRENT_CONFIG
from aks_flex_node.agent.provider.provider_client import (
    ProviderClient,
    ProviderRequestError,
    announce_node,
    provider_endpoint,
)
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.lean_dataclass import dataclass, frozen
from aks_flex_node.retry import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.context import ConfigSelection
    from aks_flex_node.agent.progress import NoteProgress, ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

ANNOUNCE_SECONDS = 120.0


@frozen
class Registration:
    """Makes the node known to its source."""

    start: Callable[[], None] | None = None  # before the kubelet starts
    finish: Callable[[], str] = str  # when the node is Ready; returns the version of its settings in an AKS pool


@dataclass
class JoinSource(ABC):
    """Where the configuration of a join comes from. A join calls `fetch`, `admit`, `persist` and `register` in this
    order, and each phase after `fetch` runs within `explain_failure`.
    """

    host: Host
    selection: ConfigSelection
    loaded: LoadedConfig = field(init=False)  # by `fetch`

    @abstractmethod
    def fetch(self, progress: ProgressReporter) -> LoadedConfig:
        """Returns the configuration. Changes nothing on this machine but its node key."""

    def preview(self, progress: ProgressReporter) -> LoadedConfig:
        """Returns the configuration for a command that must not make this machine a node."""
        return self.fetch(progress)

    @property
    def comes_from_provider(self) -> bool:
        """Whether the configuration was fetched from a URL, by this run or before, or consists of options only."""
        return self.loaded.file is None or self.loaded.file == Path(CURRENT_CONFIG)

    @property
    def decides_remotely(self) -> bool:
        """Whether another machine decides on settings, so that the policy of this one applies."""
        return self.comes_from_provider

    @property
    def has_bound_key(self) -> bool:
        """Whether the provider has bound the key of this machine in this run."""
        return False

    def admit(self, engine: Engine) -> None:  # noqa: B027 - most sources have nothing to check
        """Raises FlexError if the configuration is for another node than this one."""

    def persist(self, engine: Engine) -> None:  # noqa: B027 - or to store
        """Stores what the next run then need not fetch."""

    @contextmanager
    def register(self, engine: Engine, note: NoteProgress) -> Iterator[Registration]:  # noqa: ARG002
        """Yields the registration of this node. The provider must know a node that joins with an Azure identity."""
        config = engine.config
        if kubelet_auth(config) == "bootstrapToken" or not config.provider.url or target_cluster(config) is None:
            yield Registration()
            return

        def announce() -> None:
            # Use the identity of this join; one stored by an earlier join may differ.
            tokens = ProviderTokens(engine.machine.program, self.loaded.text)
            endpoint = provider_endpoint(config, context.node_name(engine))
            machine = identify_machine(engine.host, endpoint.origin)
            _announce_with_retry(ProviderClient(endpoint, config, tokens, machine=machine))

        yield Registration(announce)

    def describe_node(self, config: NodeConfig) -> str:  # noqa: ARG002
        """Returns what a person must know about the node in its source; empty if there is nothing."""
        return ""

    @contextmanager
    def explain_failure(self, phase: JoinPhase, config: NodeConfig) -> Iterator[None]:  # noqa: ARG002
        """Explains a failure in a phase after `fetch`. A source also tells its server, and keeps or forgets what it
        fetched.
        """
        try:
            yield
        except ClusterError as error:
            if error.name != "bootstrap-token-rejected" or self.host.stat(CONFIG_URL_DIGEST) is None:
                raise
            name = context.read_known_machine(self.host, config).node_name(config)
            raise ClusterError(
                "bootstrap-token-rejected",
                "The API server rejects the bootstrap token. It came with the configuration URL, and both are valid "
                "for one join attempt and at most one day.",
                f"Run `aks-flex-rp node join-command --name {name}` where the provider runs, then run the printed "
                "command on this machine. Installed components are kept.",
            ) from error


@dataclass
class FromLocalFile(JoinSource):
    """The configuration on this machine: files, environment and flags, or what an earlier run stored."""

    own: LoadedConfig

    def fetch(self, progress: ProgressReporter) -> LoadedConfig:  # noqa: ARG002
        self.loaded = self.own
        return self.loaded


def _announce_with_retry(provider: ProviderClient) -> None:
    """Announces the node, with retries, because the provider may be unavailable or roles not effective yet."""
    from aks_flex_node.agent.config.refusals import node_on_another_machine
    from aks_flex_node.agent.provider.poll_result import MACHINE_STATES

    deadline = RetryDeadline(ANNOUNCE_SECONDS)
    while True:
        try:
            return announce_node(provider)
        except ProviderRequestError as error:
            result = error.result
            if result.state in MACHINE_STATES.values():
                raise node_on_another_machine(result.message) from None
            if not (result.is_transient and deadline.pause()):
                raise FlexError(
                    "identity-registration-failed",
                    f"The provider rejected this node's identity: {result.message}",
                    "Check the node resource with `aks-flex-rp node show`: its `azureAuth` must name this node's "
                    "identity.",
                    retryable=True,
                ) from None
        finally:
            provider.close()
